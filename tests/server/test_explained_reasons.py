"""Why a prompt was computed that parts from nothing: it was evicted, forgotten, or never there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from starlette.testclient import TestClient

from tests.server.asking import complete
from tests.server.explaining import chat, explained, run, talk
from tests.server.fake import FakeFrontend
from tests.server.stack import Stack, cached


def test_what_was_evicted_says_when_and_for_whom(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        prompt = list(range(20, 60))
        await server.ask(prompt=prompt, max_tokens=1)
        for other in range(5):
            await server.ask(prompt=[100 + other] * 40, max_tokens=1)
        response = await server.ask(prompt=prompt, max_tokens=1)
        assert cached(response) < 36
        told = await explained(server, response)
        assert told["reason"] == "evicted"
        assert told["seconds_ago"] >= 0.0
        assert told["own_pressure"] is True
        assert told["diverged"] is None
        # The last token is computed in any case.
        assert sum(part["tokens"] for part in told["parts"]) == 39 - cached(response)

    run(tmp_path, scenario, num_pages=32)


@pytest.mark.parametrize("mode", ["off", "read-only"])
def test_what_was_asked_past_the_cache_was_never_in_it(tmp_path: Path, mode: str):
    async def scenario(server: Stack) -> None:
        prompt = list(range(20, 60))
        first = await server.ask(prompt=prompt, max_tokens=1, cache={"mode": mode})
        assert (await explained(server, first))["reason"] == ("bypass" if mode == "off" else "cold")
        told = await explained(server, await server.ask(prompt=prompt, max_tokens=1))
        assert (told["reason"], told["detail"]) == ("never_cached", f"cache mode {mode}")

    run(tmp_path, scenario)


def test_logprobs_of_a_prompt_pass_the_cache_by(client: TestClient):
    complete(client, "x" * 100)
    asked = complete(client, "x" * 100 + "y", prompt_logprobs=1).json()["id"]
    told = client.get(f"/v1/cache/requests/{asked}").json()
    assert (told["reason"], told["detail"]) == ("bypass", "prompt_logprobs")


def test_what_ends_before_it_has_begun_was_never_in_the_cache(
    client: TestClient, frontend: FakeFrontend
):
    frontend.fail_after = 0
    assert complete(client, "x" * 100).status_code == 500
    frontend.fail_after = None
    frontend._seen.clear()
    asked = complete(client, "x" * 100).json()["id"]
    told = client.get(f"/v1/cache/requests/{asked}").json()
    assert (told["reason"], told["detail"]) == ("never_cached", "failed")


def test_what_still_runs_is_not_in_the_cache_yet(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        prompt = list(range(20, 60))
        server.model.hold()
        long = server.ask(prompt=prompt, max_tokens=300, cache={"mode": "off"})
        first = asyncio.create_task(long)
        await server.steps(1)
        second = asyncio.create_task(server.ask(prompt=prompt, max_tokens=1))
        while not second.done():
            await server.steps(1)
        assert not first.done()
        told = await explained(server, second.result())
        server.model.free()
        await first
        assert (told["reason"], told["detail"]) == ("never_cached", "still running")

    run(tmp_path, scenario)


def test_a_salt_narrows_what_is_compared(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        await chat(server, talk(), cache_salt="one")
        told = await explained(server, await chat(server, talk(), cache_salt="two"))
        assert told["reason"] == "cold"
        assert told["compared_with"] is None
        assert told["narrowed_by"] == ["cache_salt"]
        plain = await explained(server, await chat(server, talk()))
        assert (plain["reason"], plain["narrowed_by"]) == ("cold", [])

    run(tmp_path, scenario)


def test_what_was_forgotten_says_so(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        asked = await chat(server, talk())
        await server.client.post("/reset_prefix_cache")
        gone = await server.client.get(f"/v1/cache/requests/{asked.json()['id']}")
        assert gone.status_code == 404
        told = await explained(server, await chat(server, talk()))
        assert told["reason"] == "reset"
        assert told["seconds_ago"] >= 0.0
        await server.client.delete("/v1/cache/tenants/self")
        assert (await explained(server, await chat(server, talk())))["reason"] == "purged"
        await chat(server, talk(), cache_salt="s")
        await server.ask("/v1/cache/purge", cache_salt="s")
        salted = await explained(server, await chat(server, talk(), cache_salt="s"))
        assert salted["reason"] == "purged"

    run(tmp_path, scenario)


def test_an_engine_that_was_started_again_has_forgotten(client: TestClient, frontend: FakeFrontend):
    stats = frontend.stats()
    complete(client, "x" * 100)
    frontend._seen.clear()
    frontend.stats = lambda: replace(stats, restarts=1)  # type: ignore[method-assign]
    again = complete(client, "x" * 100).json()["id"]
    assert client.get(f"/v1/cache/requests/{again}").json()["reason"] == "restarted"
