"""Every route that generates can say when the next request comes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.testclient import TestClient

from radixserve.cache.terms import Keeping
from tests.server.asking import CHAT, USER, refused
from tests.server.fake import FakeFrontend
from tests.server.stack import stack

ROUTES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 1},
    "/v1/responses": {"input": "Hi"},
}


@pytest.mark.parametrize("path", ROUTES)
def test_the_engine_is_told(client: TestClient, frontend: FakeFrontend, path: str) -> None:
    body = {**ROUTES[path], "next_request_in": "2m", "session_id": "s"}
    assert client.post(path, json=body).status_code == 200
    keeping = frontend.requests[-1].keeping
    assert keeping is not None
    assert replace(keeping, turn="") == Keeping((), "s", next_in=120)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("sent", [-1, "25h", "soon", 1e300])
def test_a_time_that_cannot_be_is_refused(client: TestClient, path: str, sent: Any) -> None:
    response = client.post(path, json={**ROUTES[path], "next_request_in": sent})
    assert refused(response) == ("next_request_in", "invalid_value")


@pytest.mark.parametrize(("soon", "late"), [(0, 1), (1, 0)])
def test_whoever_comes_back_soon_finds_its_prompt(tmp_path: Path, soon: int, late: int) -> None:
    """Two conversations leave no room for a third."""

    async def scenario() -> None:
        async with stack(tmp_path, page_size=4, num_pages=28) as server:
            prompts = [f"{name}: " + name * 40 for name in ("a", "b", "c")]
            for number, seconds in sorted(((soon, 5), (late, 3600))):
                await server.ask(
                    "/v1/completions",
                    prompt=prompts[number],
                    max_tokens=1,
                    next_request_in=seconds,
                )
            await server.ask("/v1/completions", prompt=prompts[2], max_tokens=1)
            found = {}
            for number in (soon, late):
                answer = await server.ask(
                    "/v1/completions",
                    prompt=prompts[number],
                    max_tokens=1,
                    cache={"mode": "read-only"},
                )
                usage = answer.json()["usage"]
                found[number] = usage["prompt_tokens_details"]["cached_tokens"]
            assert found[soon] > 32
            assert found[late] < found[soon]

    asyncio.run(scenario())
