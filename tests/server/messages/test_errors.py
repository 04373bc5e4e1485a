"""Whatever goes wrong under /v1/messages has Anthropic's shape, and elsewhere OpenAI's."""

from __future__ import annotations

import copy
import functools
import json
import operator
from collections.abc import Iterator
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from radixserve.errors import (
    ContextLengthError,
    DeadlineError,
    EngineDeadError,
    LostError,
    OverloadedError,
)
from radixserve.server.app import create_app
from radixserve.server.service import Settings
from tests.server.asking import chat, send
from tests.server.asking import error_of as openai_error
from tests.server.fake import ANSWER, FakeFrontend, saying
from tests.server.messages.asking import PATH, checked_error, counted, error_of, message
from tests.server.tenants.people import bearer, client_of, limited, registry

COUNT = f"{PATH}/count_tokens"


@pytest.mark.parametrize("path", [PATH, COUNT])
def test_what_no_route_sees_has_the_shape_too(client: TestClient, path: str):
    json_type = {"content-type": "application/json"}
    error_of(client.get(path), 405)
    error_of(client.post(f"{path}/nothing", json={}), 404)
    error_of(client.post(path, content="hi", headers={"content-type": "text/plain"}), 415)
    broken = error_of(client.post(path, content="{", headers=json_type))
    assert broken["details"] == {"error_code": "invalid_json"}
    deep = '{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}"
    error_of(client.post(path, content=deep, headers=json_type))


def test_a_body_that_is_too_large(frontend: FakeFrontend):
    with TestClient(create_app(frontend, settings=Settings(body_limit=100))) as client:
        error = error_of(message(client, system="x" * 100), 413)
    assert error["details"]["error_code"] == "request_too_large"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (OverloadedError("Too many wait.", retry_after=3), 503, "server_overloaded"),
        (EngineDeadError("secret detail", retry_after=3.0), 503, "server_overloaded"),
        (LostError("secret detail"), 503, "server_overloaded"),
        (EngineDeadError("secret detail"), 500, "engine_dead"),
        (DeadlineError("It took too long."), 504, "deadline_exceeded"),
        (ContextLengthError(300, 100), 400, "context_length_exceeded"),
        (RuntimeError("secret detail"), 500, "internal_error"),
    ],
)
def test_what_the_engine_says_keeps_its_status_and_its_headers(
    client: TestClient,
    frontend: FakeFrontend,
    stream: bool,
    refusal: Exception,
    status: int,
    code: str,
):
    frontend.refuse = refusal
    response = message(client, stream=stream)
    error = error_of(response, status)
    assert error["details"]["error_code"] == code
    assert "secret" not in error["message"]
    same = chat(client, stream=stream)
    assert openai_error(same, status)["message"] == error["message"]
    for name in ("retry-after", "x-should-retry"):
        assert response.headers.get(name) == same.headers.get(name)


def last_event(response: Response) -> str:
    *_, last, empty = response.text.split("\n\n")
    assert empty == ""
    return str(last)


@pytest.mark.parametrize("dies", [False, True])
def test_an_error_in_the_middle_of_a_stream_is_an_event(
    client: TestClient, frontend: FakeFrontend, dies: bool
):
    if dies:
        frontend.die_after = 3
    else:
        frontend.fail_after = 3
    response = message(client, stream=True)
    assert response.status_code == 200
    name, data = last_event(response).split("\n")
    assert name == "event: error"
    error = checked_error(json.loads(data.removeprefix("data: ")), response, 500)
    assert ("It broke" in error["message"]) != dies
    assert "secret" not in error["message"]
    assert response.text.count("text_delta") == 3
    assert "[DONE]" not in response.text
    assert "message_stop" not in response.text


def test_unstreamed_failures_are_errors_of_their_own(client: TestClient, frontend: FakeFrontend):
    frontend.fail_after = 3
    assert "It broke" in error_of(message(client), 500)["message"]


def test_keys_may_come_in_either_header():
    with client_of(FakeFrontend()) as client:
        for headers in (bearer("alice"), {"x-api-key": bearer("alice")["authorization"][7:]}):
            assert message(client, headers).status_code == 200
        for headers in ({}, {"x-api-key": "nonsense"}, {"authorization": "Bearer nonsense"}):
            response = message(client, headers)
            error_of(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"
        error_of(client.post(f"{PATH}/nothing", json={}), 401)
        error_of(message(client, {**bearer("alice"), "x-api-key": "another"}), 400)
        error_of(message(client, bearer("mute")), 403)


def test_limits_are_told_under_anthropics_names():
    tenants = registry(limited("requests_per_minute = 2"))
    with client_of(FakeFrontend(), tenants) as client:
        first = message(client, bearer("alice"))
        assert first.headers["anthropic-ratelimit-requests-limit"] == "2"
        assert first.headers["anthropic-ratelimit-requests-remaining"] == "1"
        path, body = COUNT, {"messages": [{"role": "user", "content": "Hi"}]}
        assert client.post(path, json=body, headers=bearer("alice")).status_code == 200
        refusal = message(client, bearer("alice"))
        error = error_of(refusal, 429)
        assert error["details"]["error_code"] == "rate_limit_exceeded"
        assert refusal.headers["retry-after"] == "30"
        assert refusal.headers["anthropic-ratelimit-requests-remaining"] == "0"


def test_tenants_share_nothing():
    frontend = FakeFrontend()
    with client_of(frontend) as client:
        read = [
            message(client, bearer(name)).json()["usage"]["cache_read_input_tokens"]
            for name in ("alice", "bob", "alice")
        ]
    assert read[:2] == [0, 0]
    assert read[2] > 0


def test_other_routes_keep_openais_shape(client: TestClient):
    headers = {"anthropic-version": "2023-06-01"}
    response = chat(client, headers=headers, temperature=9)
    assert openai_error(response)["param"] == "temperature"
    assert "request-id" not in response.headers
    openai_error(client.get("/v1/messages-of-another-kind"), 404)


WHOLE: dict[str, Any] = {
    "max_tokens": 5,
    "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "a", "signature": "b"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": [{"type": "text", "text": "a"}],
                    "is_error": True,
                }
            ],
        },
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"effort": "low"},
    "stop_sequences": ["x"],
    "metadata": {"user_id": "u"},
}
ODD = [None, 0, -1, 1.5, True, "", "text", [], {}, [None], [{}], {"a": 1}, "\ud83d", 10**30]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values inside of ``value``."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from places(each, (*path, key))


@pytest.mark.parametrize("path", [PATH, COUNT])
def test_no_odd_value_at_any_place_is_more_than_a_refusal(path: str):
    with saying(ANSWER) as (client, _):
        for *way, last in places(WHOLE):
            for odd in ODD:
                body = copy.deepcopy(WHOLE)
                functools.reduce(operator.getitem, way, body)[last] = odd
                response = send(client, json.dumps(body), path)
                assert response.status_code in (200, 400), (way, last, odd, response.text)
                if response.status_code == 400:
                    error_of(response)


def test_the_server_still_works_after_all_that(client: TestClient, frontend: FakeFrontend):
    frontend.die_after = 1
    message(client)
    frontend.die_after = None
    assert message(client).json()["content"][0]["text"] == ANSWER
    assert counted(client) > 0
