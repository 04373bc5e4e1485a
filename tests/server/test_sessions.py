"""Sessions that end over HTTP."""

from __future__ import annotations

import asyncio

from starlette.testclient import TestClient

from radixserve.cache.terms import Keeping, Mark
from tests.server.asking import CHAT, complete, part, user
from tests.server.fake import FakeFrontend
from tests.server.stack import stack


def test_a_session_that_ends_is_unknown_from_then_on(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            messages = [user(part("Who are you, and where?"))]
            await server.ask(CHAT, messages=messages, max_tokens=4, session_id="s 1/2")
            await server.settle()
            ended = await server.client.delete("/v1/cache/sessions/s%201%2F2")
            assert ended.json()["released_pages"] > 2
            again = await server.client.delete("/v1/cache/sessions/s%201%2F2")
            assert again.status_code == 404
            assert again.json()["error"]["code"] == "session_not_found"

    asyncio.run(scenario())


def test_a_session_is_found_with_the_salt_that_it_had(client: TestClient, frontend: FakeFrontend):
    assert client.delete("/v1/cache/sessions/known").json() == {
        "id": "known",
        "object": "session",
        "ended": True,
        "released_pages": 5,
    }
    salted = client.request("DELETE", "/v1/cache/sessions/known", json={"cache_salt": "x"})
    assert salted.json()["ended"]
    (_, plain, _), (_, other, _) = frontend.ended
    assert plain != other
    assert client.delete("/v1/cache/sessions/other").status_code == 404
    assert client.delete("/v1/cache/sessions/" + "x" * 300).status_code == 400


def test_a_misspelt_salt_ends_no_session(client: TestClient, frontend: FakeFrontend):
    answer = client.request("DELETE", "/v1/cache/sessions/known", json={"cache_sallt": "x"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_sallt")
    assert not frontend.ended


def test_completions_belong_to_sessions_too(client: TestClient, frontend: FakeFrontend):
    complete(client, session_id="s", keep_for="5m")
    assert frontend.requests[-1].keeping == Keeping((Mark(None, 300),), "s")
    complete(client)
    assert frontend.requests[-1].keeping is None
