"""What would be reused of a prompt is told without generating, computing or touching anything."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.server.asking import CHAT, COMPLETIONS, USER, error_of
from tests.server.fake import FakeFrontend
from tests.server.messages.asking import PATH as MESSAGES
from tests.server.stack import Stack, cached, stack
from tests.server.tenants.people import bearer, client_of

LOOKUP = "/v1/cache/lookup"
RESPONSES = "/v1/responses"
TEXT = "Once upon a time there was a lighthouse at the end of the coast, and a keeper in it."


def body(path: str, text: str = TEXT) -> dict[str, Any]:
    if path == COMPLETIONS:
        return {"prompt": text, "max_tokens": 1}
    if path == RESPONSES:
        return {"input": text, "instructions": "Be kind.", "max_output_tokens": 16}
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    return body | ({"system": "Be kind."} if path == MESSAGES else {})


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
def test_it_tells_what_the_request_then_finds(tmp_path: Path, path: str):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            before = await look(server, body(path))
            assert (before["cached_tokens"], before["reason"]) == (0, "cold")
            await server.ask(path, **body(path))
            other = TEXT.replace("keeper", "painter")
            steps, pages = server.model.steps, server.engine.stats().pages_free
            told = await look(server, body(path, other))
            again = await look(server, body(path, other))
            assert told | {"id": 0} == again | {"id": 0}
            assert (server.model.steps, server.engine.stats().pages_free) == (steps, pages)
            answer = (await server.ask(path, **body(path, other))).json()
            usage = answer["usage"]
            found = usage.get("cache_read_input_tokens")
            if found is None:
                details = usage.get("input_tokens_details") or usage["prompt_tokens_details"]
                found = details["cached_tokens"]
            assert told["cached_tokens"] == told["common_tokens"] == found > 0
            assert told["reason"] == "diverged"
            assert told["diverged"]["character"] == TEXT.index("keeper")
            assert told["expected_ttft_ms"] > 0.0
            whole = await look(server, body(path))
            assert whole["computed_tokens"] == 1

    asyncio.run(scenario())


async def look(server: Stack, body: dict[str, Any]) -> dict[str, Any]:
    response = await server.ask(LOOKUP, **body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_what_was_evicted_is_told_before_it_is_asked(tmp_path: Path):
    async def scenario() -> None:
        async with stack(tmp_path, num_pages=32) as server:
            prompt = {"prompt": list(range(20, 60)), "max_tokens": 1}
            await server.ask(**prompt)
            for other in range(5):
                await server.ask(prompt=[100 + other] * 40, max_tokens=1)
            told = await look(server, prompt)
            assert told["reason"] == "evicted"
            assert told["own_pressure"] is True
            assert told["cached_tokens"] == cached(await server.ask(**prompt))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [{"role": "user"}]},
        {"messages": "Hi"},
        {"messages": [{"role": "user", "content": "Hi"}], "temperature": -1},
        {"messages": [{"role": "user", "content": "Hi"}], "n": 0},
        {"messages": [{"role": "user", "content": "Hi"}], "echo": True},
        {"messages": [{"role": "user", "content": "Hi"}], "cache_salt": ""},
        {"messages": [{"role": "user", "content": "Hi"}], "tools": []},
        {"messages": [{"role": "user", "content": "x" * 500}]},
        {"messages": [{"role": "user", "content": "Hi"}], "model": "another"},
        {"prompt": []},
        {"prompt": [999]},
        {"prompt": "x" * 500},
        {"prompt": "Hi", "best_of": 0},
        {"input": 5},
        {"input": []},
        {"input": "Hi", "temperature": -1},
        {"input": "Hi", "previous_response_id": "resp_none"},
        {},
    ],
)
def test_it_refuses_what_the_request_would_be_refused_for(
    client: TestClient, fields: dict[str, Any]
):
    routes = {"prompt": COMPLETIONS, "input": RESPONSES}
    path = next((path for name, path in routes.items() if name in fields), CHAT)
    asked = client.post(path, json=fields)
    told = client.post(LOOKUP, json=fields)
    assert asked.status_code == told.status_code >= 400
    assert error_of(asked, asked.status_code) == error_of(told, asked.status_code)


@pytest.mark.parametrize("name", ["prompt", "input", "previous_response_id", "system"])
def test_a_field_that_is_null_is_as_good_as_left_out(client: TestClient, name: str):
    chat = {"messages": [{"role": "system", "content": "Be kind."}, *USER]}
    told = client.post(LOOKUP, json=chat | {name: None})
    assert told.status_code == 200, told.text
    assert told.json() | {"id": 0} == client.post(LOOKUP, json=chat).json() | {"id": 0}


def test_it_refuses_several_prompts_and_what_is_no_json(client: TestClient):
    assert error_of(client.post(LOOKUP, json={"prompt": ["a", "b"]}))["param"] == "prompt"
    broken = client.post(LOOKUP, content=b"{", headers={"content-type": "application/json"})
    assert error_of(broken)["code"] == "invalid_json"


def test_nothing_is_generated(client: TestClient, frontend: FakeFrontend):
    told = client.post(LOOKUP, json=body(CHAT))
    assert told.status_code == 200, told.text
    assert not frontend.requests
    assert client.get(f"/v1/cache/requests/{told.json()['id']}").status_code == 404


def test_nobody_is_told_of_anothers_requests(frontend: FakeFrontend):
    with client_of(frontend) as client:
        mine, yours = bearer("alice"), bearer("bob")
        asked = client.post(COMPLETIONS, json={"prompt": TEXT}, headers=mine)
        id = asked.json()["id"]
        assert client.get(f"/v1/cache/requests/{id}", headers=mine).status_code == 200
        assert client.get(f"/v1/cache/requests/{id}", headers=yours).status_code == 404
        told = client.post(LOOKUP, json={"prompt": TEXT}, headers=yours).json()
        assert (told["reason"], told["cached_tokens"]) == ("cold", 0)
