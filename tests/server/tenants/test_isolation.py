"""Tenants never find what others left in the cache, whatever they send, on every route."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.routing import Route

from radixserve.cache.namespace import Namespace
from radixserve.server.app import TENANTS
from radixserve.server.service import Settings
from radixserve.server.tenants.audit import Audit
from radixserve.server.tenants.auth import Access
from radixserve.server.tenants.registry import Registry
from radixserve.tenants.keys import hash_of
from radixserve.tokens import unpack
from tests.engine.saying import TEXT
from tests.server.asking import error_of, events
from tests.server.messages.asking import PATH as MESSAGES
from tests.server.messages.asking import accumulated
from tests.server.messages.asking import error_of as anthropic_error_of
from tests.server.responses.told import PATH as RESPONSES
from tests.server.responses.told import events as told
from tests.server.stack import CHAT, COMPLETIONS, Stack, cached, said, stack
from tests.server.tenants.people import FILE, KEYS, bearer, registry, write

LONG = "The same words, which nobody else may find, and which go on for a while."
GENERATE = "/generate"
ROUTES = [COMPLETIONS, CHAT, MESSAGES, RESPONSES, GENERATE]
HANG = 60.0
"""Seconds; what takes longer is taken for a hang."""
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


@asynccontextmanager
async def shared(
    directory: Path, tenants: Registry | None = None, **settings: Any
) -> AsyncIterator[Stack]:
    async with stack(directory, tenants=tenants or registry(), **settings) as server:
        yield server


def body(path: str, text: str = LONG, *, stream: bool = False, most: int = 2) -> dict[str, Any]:
    if path == GENERATE:
        return {"text": text, "sampling_params": {"max_new_tokens": most}, "stream": stream}
    if path == RESPONSES:
        return {"input": text, "max_output_tokens": most, "stream": stream}
    prompt: dict[str, Any] = {"prompt": text}
    if path in (CHAT, MESSAGES):
        prompt = {"messages": [{"role": "user", "content": text}]}
    more = {"stream_options": {"include_usage": True}} if stream and path != MESSAGES else {}
    return {**prompt, "max_tokens": most, "stream": stream, **more}


def reused(path: str, answer: httpx2.Response) -> int:
    assert answer.status_code == 200, answer.text
    if path in (COMPLETIONS, CHAT):
        return cached(answer)
    streamed = answer.headers["content-type"].startswith("text/event-stream")
    if path == MESSAGES:
        message = accumulated(answer) if streamed else answer.json()
        return int(message["usage"]["cache_read_input_tokens"])
    if path == RESPONSES:
        response = told(answer)[-1]["response"] if streamed else answer.json()
        return int(response["usage"]["input_tokens_details"]["cached_tokens"])
    last = events(answer)[-1] if streamed else answer.json()
    return int(last["meta_info"]["cached_tokens"])


def param_of(path: str, answer: httpx2.Response) -> str:
    """The field for which a request was refused."""
    if path == MESSAGES:
        return str(anthropic_error_of(answer)["details"]["param"])
    return str(error_of(answer)["param"])


async def ask(
    server: Stack, name: str, path: str = COMPLETIONS, text: str = LONG, **fields: Any
) -> int:
    """Tokens that were reused of the same question, asked by ``name``."""
    stream = bool(fields.pop("stream", False))
    sent = {**body(path, text, stream=stream), **fields}
    return reused(path, await server.ask(path, key=KEYS[name], **sent))


def test_these_are_all_routes_that_generate():
    limited = {
        route.path
        for route in TENANTS
        if isinstance(route, Route) and isinstance(route.app, Access) and route.app._limited
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
                while len(server.engine._streams._inboxes) < 2:
                    await asyncio.sleep(0)
                server.model.free()
                counts = await asyncio.gather(*tasks)
                assert server.engine.stats().computed_tokens - before == computed
                assert sorted(counts) == ([0, 0] if computed == 2 * length else [0, length - 1])

    asyncio.run(scenario())


def forgeries() -> list[str]:
    """Salts with which bob would be alice, if anything could."""
    alice = Namespace(tenant="alice")
    keys = [alice.key(), Namespace(tenant="alice", salt="s").key(), Namespace(salt="s").key()]
    return [
        "alice",
        "alice\0s",
        "alice/s",
        "alice:s",
        "\0alice",
        "s\0",
        "\0" * 300,
        "../alice",
        *(key.decode("latin-1") for key in keys),
    ]


@pytest.mark.parametrize("path", ROUTES)
def test_a_salt_only_narrows_whoever_else_has_the_same(tmp_path, path: str):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            for fields in (
                {},
                {"cache_salt": "s"},
                {"extra_key": "s"},
                {"cache_salt": "s", "extra_key": "s"},
            ):
                assert await ask(server, "alice", path, **fields) == 0
                assert await ask(server, "bob", path, **fields) == 0
                assert await ask(server, "alice", path, **fields) > 0
                assert await ask(server, "bob", path, **fields) > 0

    asyncio.run(scenario())


@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
def test_no_salt_makes_one_tenant_another(tmp_path, field: str):
    async def scenario() -> None:
        async with shared(tmp_path, num_pages=1000) as server:
            for mine in ({}, {"cache_salt": "s"}, {"extra_key": "s"}):
                await ask(server, "alice", **mine)
            for salt in forgeries():
                assert await ask(server, "bob", **{field: salt}) == 0, repr(salt)
                assert await ask(server, "bob", **{field: salt}) > 0, "it is a salt like any other"
            assert await ask(server, "alice") > 0

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
def test_a_salt_that_cannot_be_one_is_refused_and_costs_nothing(tmp_path, path: str, field: str):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            for salt in ("", "x" * 513, "é" * 257, "x" * 2**20, 5, ["s"], {"a": "b"}):
                sent = {**body(path), field: salt}
                answer = await server.ask(path, key=KEYS["alice"], **sent)
                assert param_of(path, answer) == field
            assert server.engine.stats().computed_tokens == 0
            assert await ask(server, "alice", path, **{field: "x" * 512}) == 0

    asyncio.run(scenario())


def test_a_routing_hint_of_openais_does_not_narrow(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            await ask(server, "alice", prompt_cache_key="user-1")
            assert await ask(server, "alice", prompt_cache_key="user-2") > 0
            assert await ask(server, "bob", prompt_cache_key="user-1") == 0

    asyncio.run(scenario())


def test_two_tenants_with_one_request_id_both_get_their_own_answers(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            server.model.hold()
            sent = {"x-request-id": "the same"}
            tasks = [
                asyncio.create_task(
                    server.client.post(
                        COMPLETIONS,
                        json=body(COMPLETIONS, f"{name} asks", most=length),
                        headers={**bearer(name), **sent},
                    )
                )
                for name, length in (("alice", 10), ("bob", 20))
            ]
            while len(server.engine._streams._inboxes) < 2:
                await asyncio.sleep(0)
            server.model.free()
            answers = await asyncio.gather(*tasks)
            assert [said(answer) for answer in answers] == [TEXT[:10], TEXT[:20]]
            assert {answer.headers["x-request-id"] for answer in answers} == {"the same"}
            await server.settle()

    asyncio.run(scenario())


def test_the_same_question_is_answered_anew_for_everybody(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            identities = set()
            for number, name in enumerate(("alice", "bob", "alice"), 1):
                sent = body(COMPLETIONS, most=20)
                answer = await server.ask(key=KEYS[name], **sent, temperature=0, seed=1)
                identities.add(answer.json()["id"])
                assert said(answer) == TEXT[:20]
                assert server.engine.stats().generated_tokens == number * 20
            assert len(identities) == 3
            assert cached(answer) > 0

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, GENERATE])
def test_an_answer_to_a_prompt_that_ends_within_a_character_shows_none_of_the_prompt(
    tmp_path, path: str, stream: bool
):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            whole = unpack(server.engine.tokenizer.encode("marker-in-prompt €"))
            for cut in (1, 2):
                sent = body(path, stream=stream, most=20)
                sent["prompt" if path == COMPLETIONS else "input_ids"] = whole[:-cut]
                sent.pop("text", None)
                for _ in range(2):  # the second time it is cached
                    answer = await server.ask(path, key=KEYS["alice"], **sent)
                    assert answer.status_code == 200, answer.text
                    assert "marker" not in answer.text
                    assert "\ufffd" not in answer.text
                    if path == COMPLETIONS:
                        assert said(answer) == TEXT[:20]
                assert reused(path, answer) > 0

    asyncio.run(scenario())


def test_secrets_stand_in_no_log_and_in_no_status(tmp_path, caplog: pytest.LogCaptureFixture):
    secrets = {"prompt": "marker-in-prompt", "salt": "marker-in-salt", "key": "rsk_marker-in-key"}
    text = FILE.replace(registry().tenants["alice"].keys[0], hash_of(secrets["key"]))
    path = tmp_path / "audit.jsonl"

    async def scenario() -> None:
        with Audit(path) as audit:
            async with shared(tmp_path / "model", registry(text), audit=audit) as server:
                for route, salt in itertools.product(ROUTES, ("cache_salt", "extra_key")):
                    for stream in (False, True):
                        sent = body(route, secrets["prompt"], stream=stream)
                        await server.ask(
                            route, key=secrets["key"], **sent, **{salt: secrets["salt"]}
                        )
                        sent = {**sent, "n": "wrong", salt: secrets["salt"]}
                        await server.ask(route, key=secrets["key"], **sent)
                        await server.ask(route, key=secrets["key"] + "x", **sent)
                assert server.engine.stats().cached_tokens > 0
                shown = []
                for each in server.app.routes:
                    if isinstance(each, Route) and "GET" in (each.methods or ()):
                        url = re.sub(r"\{[^}]*\}", "tiny", each.path)
                        answer = await server.client.get(url, headers=bearer("boss"))
                        assert answer.status_code in (200, 404, 501)
                        shown.append(answer.text)
                assert len(shown) >= 15
                texts = "\n".join(shown)
                assert 'tenant="alice"' in texts
                for secret in secrets.values():
                    assert secret not in texts

    (tmp_path / "model").mkdir()
    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())
    assert "POST /v1/completions 200" in caplog.text
    written = path.read_text(encoding="utf-8")
    assert len(written.splitlines()) >= 3 * 2 * 2 * 3
    for secret in secrets.values():
        assert secret not in caplog.text
        assert secret not in written


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


async def batch_of(server: Stack, name: str) -> list[int]:
    """Tokens reused by each line of a batch with the same question, asked by ``name``."""
    line = {"custom_id": "one", "method": "POST", "url": CHAT, "body": body(CHAT)}
    sent = await server.client.post(
        "/v1/files",
        files={"file": ("in.jsonl", json.dumps(line).encode())},
        data={"purpose": "batch"},
        headers=bearer(name),
    )
    made = await server.client.post(
        "/v1/batches",
        json={"input_file_id": sent.json()["id"], "endpoint": CHAT, "completion_window": "24h"},
        headers=bearer(name),
    )
    batch = made.json()
    for each in ("alice", "bob"):
        for path in (f"/v1/batches/{batch['id']}", f"/v1/files/{sent.json()['id']}"):
            seen = await server.client.get(path, headers=bearer(each))
            assert seen.status_code == (200 if each == name else 404)
    while batch["status"] not in ("completed", "failed"):
        await asyncio.sleep(0)
        path = f"/v1/batches/{batch['id']}"
        batch = (await server.client.get(path, headers=bearer(name))).json()
    path = f"/v1/files/{batch['output_file_id']}/content"
    text = (await server.client.get(path, headers=bearer(name))).text
    bodies = [json.loads(each)["response"]["body"] for each in text.splitlines()]
    return [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in bodies]


def test_batches_are_the_tenants_whose_they_are(tmp_path):
    async def scenario() -> None:
        settings = Settings(files_dir=tmp_path / "files")
        tenants = registry()
        async with shared(tmp_path / "model", tenants, server=settings) as server:
            assert await batch_of(server, "alice") == [0]
            assert await batch_of(server, "bob") == [0]
            [reused] = await batch_of(server, "alice")
            assert reused > 0
            assert await ask(server, "bob", CHAT) == reused
            counted = {tenant.name: meter.totals.requests for tenant, meter in tenants.meters()}
            assert (counted["alice"], counted["bob"]) == (2, 2)

    (tmp_path / "model").mkdir()
    asyncio.run(asyncio.wait_for(scenario(), HANG))


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
