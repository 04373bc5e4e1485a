"""A prompt beside an earlier one that the client names: OpenAI's and Anthropic's diagnostics."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.server.app import create_app
from tests.server.fake import FakeFrontend
from tests.server.messages.asking import PATH as MESSAGES
from tests.server.messages.asking import accumulated
from tests.server.responses.told import PATH as RESPONSES
from tests.server.responses.told import events as told

SYSTEM = "You help people who live by the sea, and you are brief and kind."


@pytest.fixture
def client() -> Any:
    with TestClient(create_app(FakeFrontend(max_model_len=4000))) as client:
        yield client


def message(client: TestClient, previous: Any = None, **fields: Any) -> dict[str, Any]:
    body = {
        "max_tokens": 5,
        "system": SYSTEM,
        "messages": [{"role": "user", "content": "What is a fjord?"}],
        "diagnostics": {"previous_message_id": previous},
    }
    response = client.post(MESSAGES, json=body | fields)
    assert response.status_code == 200, response.text
    return dict(accumulated(response) if fields.get("stream") else response.json())


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_beside_the_one_before(client: TestClient, stream: bool):
    first = message(client, stream=stream)
    assert first["diagnostics"] is None
    same = message(client, first["id"], stream=stream)
    assert same["diagnostics"] is None
    turns = [
        {"role": "user", "content": "What is a fjord?"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "And a delta?"},
    ]
    assert message(client, first["id"], messages=turns, stream=stream)["diagnostics"] is None
    changed = [{"role": "user", "content": "What is a delta?"}]
    for fields, kind in (
        ({"system": "It is 12:04. " + SYSTEM}, "system_changed"),
        ({"messages": changed}, "messages_changed"),
    ):
        found = message(client, first["id"], stream=stream, **fields)["diagnostics"]
        assert found["cache_miss_reason"]["type"] == kind
        assert found["cache_miss_reason"]["cache_missed_input_tokens"] > 0


def test_a_message_beside_one_that_is_not_known(client: TestClient):
    found = message(client, "msg_nothing")["diagnostics"]
    assert found == {"cache_miss_reason": {"type": "previous_message_not_found"}}
    first = message(client, cache_salt="another")
    found = message(client, first["id"])["diagnostics"]
    assert found == {"cache_miss_reason": {"type": "previous_message_not_found"}}


def test_messages_say_nothing_unasked(client: TestClient):
    assert "diagnostics" not in message(client, diagnostics=None)
    assert message(client, "")["diagnostics"] is None
    assert "radixserve" not in message(client)["usage"]
    used = message(client, explain=True, system="Another. " + SYSTEM)["usage"]["radixserve"]
    assert sum(used["reasons"].values()) == used["computed_tokens"]


def respond(client: TestClient, compare: Any = None, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"instructions": SYSTEM, "input": "What is a fjord?"}
    if compare is not None:
        body["prompt_cache_options"] = {"comparison_response_id": compare}
    response = client.post(RESPONSES, json=body | fields)
    assert response.status_code == 200, response.text
    return dict(told(response)[-1]["response"] if fields.get("stream") else response.json())


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_beside_another(client: TestClient, stream: bool):
    first = respond(client, stream=stream)
    assert "prompt_cache_diagnostics" not in first
    assert "prompt_cache_diagnostics" not in respond(client, "", stream=stream)
    same = respond(client, first["id"], stream=stream)
    assert same["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    other = respond(client, first["id"], stream=stream, input="What is a delta?")
    found = other["prompt_cache_diagnostics"]
    assert (found["type"], found["reason"]) == ("cache_miss", "input_changed")
    prompt = other["usage"]["input_tokens"]
    assert found["cache_missed_tokens"] + found["comparison_reusable_tokens"] == prompt
    unknown = respond(client, "resp_nothing", stream=stream)
    assert unknown["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}


def test_what_is_compared_goes_on_from_what_is_stored(client: TestClient):
    first = respond(client)
    second = respond(client, previous_response_id=first["id"], input="And a delta?")
    third = respond(client, second["id"], previous_response_id=first["id"], input="And an atoll?")
    found = third["prompt_cache_diagnostics"]
    assert (found["type"], found["reason"]) == ("cache_miss", "input_changed")
    place = client.get(f"/v1/cache/requests/{third['id']}").json()["diverged"]
    assert (place["role"], place["message"]) == ("user", 3)


def test_an_id_that_is_none_is_refused(client: TestClient):
    for path, fields, param in (
        (
            RESPONSES,
            {"input": "Hi", "prompt_cache_options": {"comparison_response_id": 3}},
            "prompt_cache_options.comparison_response_id",
        ),
    ):
        response = client.post(path, json=fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
