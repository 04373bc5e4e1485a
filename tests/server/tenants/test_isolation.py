"""Tenants never find what others left in the cache, whatever they send, on every route."""

from __future__ import annotations

import asyncio

import pytest
from starlette.routing import Route

from radixserve.server.app import TENANTS
from radixserve.server.service import Settings
from radixserve.server.tenants.registry import Registry
from tests.engine.saying import TEXT
from tests.engine.timing import under_way
from tests.server.asking import CHAT, COMPLETIONS, error_of
from tests.server.responses.told import PATH as RESPONSES
from tests.server.stack import cached, said, stack
from tests.server.tenants.people import FILE, KEYS, bearer, write
from tests.server.tenants.sharing import GENERATE, LONG, ROUTES, ask, body, shared

NOT_GENERATING = {
    "/tokenize",
    "/detokenize",
    "/v1/embeddings",
    "/v1/cache/lookup",
    "/v1/messages/count_tokens",
    f"{RESPONSES}/input_tokens",
    "/v1/cache/prewarm",
    "/v1/cache/prefixes/{prefix}",
    "/v1/cache/prefixes/{prefix}/prewarm",
}


def test_these_are_all_routes_that_generate():
    limited = {
        route.path for route in TENANTS if isinstance(route, Route) and route.endpoint.limited
    }
    assert limited - NOT_GENERATING == set(ROUTES), "a new route belongs into these tests"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_what_one_tenant_has_warmed_is_cold_for_another(tmp_path, path: str, stream: bool):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            assert await ask(server, "alice", path, stream=stream) == 0
            before = server.engine.stats()
            assert await ask(server, "bob", path, stream=stream) == 0
            after = server.engine.stats()
            prompt = after.prompt_tokens - before.prompt_tokens
            assert after.computed_tokens - before.computed_tokens >= prompt
            for name in ("alice", "bob"):
                assert await ask(server, name, path, stream=stream) == prompt - 1
            await server.settle()

    asyncio.run(scenario())


@pytest.mark.parametrize("named", [False, True])
def test_what_one_tenant_has_had_computed_before_it_came_is_cold_for_another(tmp_path, named: bool):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            method, path = "POST", "/v1/cache/prewarm"
            if named:
                method, path = "PUT", "/v1/cache/prefixes/house"
            warmed = {"messages": [{"role": "user", "content": LONG}], "session_id": "s"}
            for name in ("alice", "bob"):
                found = await server.client.request(method, path, json=warmed, headers=bearer(name))
                assert found.json()["cached_tokens"] == 0
            ending = path if named else "/v1/cache/sessions/s"
            assert (await server.client.delete(ending, headers=bearer("alice"))).status_code == 200
            assert (await server.client.delete(ending, headers=bearer("alice"))).status_code == 404
            assert (await server.client.delete(ending, headers=bearer("bob"))).status_code == 200
            await server.settle()

    asyncio.run(scenario())


def test_not_even_a_part_of_a_block_is_copied_across(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path, page_size=16) as server:
            await ask(server, "alice", text="0123456789 and so on")
            assert await ask(server, "bob", text="0123456789 but not so") == 0
            assert await ask(server, "alice", text="0123456789 but not so") >= 10

    asyncio.run(scenario())


def test_nobody_waits_for_another_tenants_prefill_to_share_it(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path, max_num_batched_tokens=8) as server:
            length = len(server.engine.tokenizer.encode(LONG)) // 4
            for names, computed in ((("alice", "bob"), 2 * length), (("boss", "boss"), length + 1)):
                before = server.engine.stats().computed_tokens
                server.model.hold()
                tasks = [asyncio.create_task(ask(server, name, max_tokens=1)) for name in names]
                await under_way(server.engine, 2)
                server.model.free()
                counts = await asyncio.gather(*tasks)
                assert server.engine.stats().computed_tokens - before == computed
                assert sorted(counts) == ([0, 0] if computed == 2 * length else [0, length - 1])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"n": 10**9}),
        (CHAT, {"n": 10**9}),
        (GENERATE, {"sampling_params": {"n": 10**9}}),
        (COMPLETIONS, {"prompt": ["a"] * 50_000}),
        (GENERATE, {"text": ["a"] * 50_000}),
        (COMPLETIONS, {"stop": ["a"] * 500_000}),
        (CHAT, {"stop": ["a"] * 500_000}),
        (COMPLETIONS, {"logprobs": 266}),
        (CHAT, {"logprobs": True, "top_logprobs": 266}),
        (GENERATE, {"return_logprob": True, "top_logprobs_num": 266}),
        (COMPLETIONS, {"prompt_logprobs": -1}),
        (CHAT, {"bad_words": ["a"] * 50_000}),
    ],
)
def test_small_bodies_that_ask_for_much_are_refused_before_any_work(tmp_path, path, fields):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            answer = await server.ask(path, key=KEYS["alice"], **{**body(path), **fields})
            assert error_of(answer)["type"] == "invalid_request_error"
            assert len(answer.content) < 2000
            stats = server.engine.stats()
            assert (stats.computed_tokens, stats.running, stats.waiting) == (0, 0, 0)
            assert await ask(server, "alice", path) == 0

    asyncio.run(scenario())


def test_a_tenant_forgets_its_own_under_load_and_nothing_of_others(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            for name in ("alice", "bob"):
                await ask(server, name)
                assert await ask(server, name) > 0
            server.model.hold()
            runs = asyncio.create_task(server.ask(key=KEYS["alice"], **body(COMPLETIONS, most=30)))
            await server.steps(3)
            purging = asyncio.create_task(
                server.client.delete("/v1/cache/tenants/self", headers=bearer("alice"))
            )
            while not server.engine._streams._asked:
                await asyncio.sleep(0)
            server.model.free()
            purge = (await purging).json()
            assert (purge["success"], purge["tenant"]) == (True, "alice")
            assert purge["held_pages"] > 0
            answer = await runs
            assert said(answer) == TEXT[:30]
            assert cached(answer) > 0, "it keeps what it held"
            assert await ask(server, "bob") > 0
            assert await ask(server, "alice") == 0
            assert await ask(server, "alice") > 0
            answer = await server.client.delete("/v1/cache/tenants/alice", headers=bearer("boss"))
            assert answer.json()["dropped_pages"] > 0
            assert await ask(server, "alice") == 0
            await server.settle()

    asyncio.run(scenario())


def test_who_gets_a_name_that_somebody_had_finds_nothing_of_theirs(tmp_path):
    async def scenario() -> None:
        path = write(tmp_path)
        tenants = Registry.from_file(path)
        async with shared(tmp_path, tenants) as server:
            await ask(server, "alice")
            await tenants.reload()
            assert await ask(server, "alice") > 0, "a reload forgets nothing"
            write(tmp_path, FILE.replace("tenants.alice", "tenants.carol"))
            await tenants.reload()
            write(tmp_path, FILE)
            await tenants.reload()
            assert await ask(server, "alice") == 0
            assert await ask(server, "alice") > 0

    asyncio.run(scenario())


def test_an_open_servers_clients_share_as_they_always_did(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, server=Settings()) as server:
            for fields in ({}, {"cache_salt": "s"}):
                for count in (0, len(server.engine.tokenizer.encode(LONG)) // 4 - 1):
                    answer = await server.ask(**body(COMPLETIONS), **fields)
                    assert cached(answer) == count

    asyncio.run(scenario())
