"""Public prefixes, from the declaration over HTTP to what other tenants reuse of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from radixserve.server.app import create_app
from radixserve.server.service import Settings
from radixserve.server.tenants.audit import Audit
from radixserve.server.tenants.declared import MOST_OF_A_TENANT
from radixserve.server.tenants.registry import Registry
from radixserve.text.tokenizer import Tokenizer
from tests.engine.supervised import back
from tests.engine.supervised import running as running_in_a_process
from tests.server.asking import CHAT, error_of, refused
from tests.server.stack import Stack, cached, stack
from tests.server.tenants.people import FILE, bearer, registry, write
from tests.text.tiny import CHATML, tiny_tokenizer_dir

SYSTEM = [{"role": "system", "content": "You help the people of the hill, all of them."}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
RIGHT = "public_prefixes = true"
ALICE = FILE.replace("[tenants.alice]", f"[tenants.alice]\n{RIGHT}")
BOTH = ALICE.replace("[tenants.bob]", f"[tenants.bob]\n{RIGHT}")
PUBLIC = "/v1/cache/public"


@asynccontextmanager
async def shared(
    directory: Path, text: str = ALICE, *, tenants: Registry | None = None, **settings: Any
) -> AsyncIterator[Stack]:
    async with stack(directory, tenants=tenants or registry(text), **settings) as server:
        yield server


async def declare(
    client: httpx2.AsyncClient, name: str = "hill", who: str = "alice", **fields: Any
) -> httpx2.Response:
    body = fields or {"messages": SYSTEM}
    return await client.put(f"{PUBLIC}/{name}", json=body, headers=bearer(who))


async def withdraw(
    client: httpx2.AsyncClient, name: str = "hill", who: str = "alice"
) -> httpx2.Response:
    return await client.delete(f"{PUBLIC}/{name}", headers=bearer(who))


async def names(client: httpx2.AsyncClient, who: str) -> list[tuple[str, str]]:
    """Of the tenant and of the prefix, of all that ``who`` is shown."""
    answer = await client.get(PUBLIC, headers=bearer(who))
    return [(each["tenant"], each["name"]) for each in answer.json()["data"]]


async def reused(client: httpx2.AsyncClient, who: str, text: str, **fields: Any) -> int:
    """Tokens that were reused of a chat that begins with ``SYSTEM``."""
    messages = [*SYSTEM, {"role": "user", "content": text}]
    body = {"messages": messages, "max_tokens": 2, **fields}
    return cached(await client.post(CHAT, json=body, headers=bearer(who)))


def test_all_tenants_share_what_is_public_and_nothing_behind_it(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            client = server.client
            told = (await declare(client)).json()
            assert (told["name"], told["tenant"]) == ("hill", "alice")
            tokens = told["tokens"]
            assert tokens > 40
            assert tokens % 4 == 0
            assert await reused(client, "alice", "What is for supper?") == 0
            assert await reused(client, "bob", "What is for supper?") == tokens
            assert await reused(client, "bob", "What is for supper?") > tokens
            assert await reused(client, "alice", "What is for lunch?") > tokens
            assert await reused(client, "boss", "What is for lunch?") == tokens
            assert await reused(client, "boss", "Why?", cache_salt="s") == tokens
            await server.settle()

    asyncio.run(scenario())


def test_before_it_is_declared_and_once_it_is_withdrawn_nobody_shares_it(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            client = server.client
            assert await reused(client, "alice", "Why?") == 0
            assert await reused(client, "bob", "Why?") == 0
            await declare(client)
            assert await reused(client, "alice", "Why?") == 0, "what was private stays so"
            assert await reused(client, "bob", "Why?") > 0
            assert (await withdraw(client)).json()["deleted"] is True
            assert await reused(client, "bob", "Why?") > 0, "its own from before"
            assert await reused(client, "boss", "Why?") == 0
            assert server.engine.stats().public_pages == 0
            error_of(await withdraw(client), 404)
            await server.settle()

    asyncio.run(scenario())


def test_without_the_right_nothing_is_declared_listed_or_withdrawn(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            client = server.client
            await declare(client, who="boss")
            for answer in (
                await declare(client, who="bob"),
                await client.get(PUBLIC, headers=bearer("bob")),
                await withdraw(client, who="bob"),
            ):
                error = error_of(answer, 403)
                assert error["code"] == "permission_denied"
                assert "public prefixes" in error["message"]
            assert await names(client, "boss") == [("boss", "hill")]

    asyncio.run(scenario())


def test_names_are_ones_own_and_only_an_administrator_sees_those_of_others(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path, BOTH) as server:
            client = server.client
            await declare(client, "hill", "alice")
            assert await names(client, "bob") == []
            error_of(await withdraw(client, "hill", "bob"), 404)
            await declare(client, "hill", "bob")
            assert await names(client, "alice") == [("alice", "hill")]
            assert await names(client, "boss") == [("alice", "hill"), ("bob", "hill")]
            await withdraw(client, "hill", "alice")
            assert await reused(client, "alice", "Why?") == 0
            assert await reused(client, "boss", "Why?") > 0, "bob has declared the same"

    asyncio.run(scenario())


def test_a_declaration_takes_the_place_of_the_one_of_its_name(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            client = server.client
            first = (await declare(client)).json()
            other = [{"role": "system", "content": "You help nobody."}]
            second = (await declare(client, messages=other)).json()
            assert second["tokens"] < first["tokens"]
            assert len(await names(client, "alice")) == 1
            assert await reused(client, "alice", "Why?") == 0
            assert await reused(client, "bob", "Why?") < first["tokens"] // 2

    asyncio.run(scenario())


def test_nobody_is_told_how_much_of_it_is_reused(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            client = server.client
            before = (await declare(client)).json()
            await reused(client, "bob", "Why?")
            await reused(client, "boss", "Why?")
            answer = await client.get(PUBLIC, headers=bearer("alice"))
            assert answer.json() == {"object": "list", "data": [before]}
            assert set(before) == {"name", "object", "tenant", "tokens", "created_at"}
            stats = await client.get("/v1/cache/stats", headers=bearer("alice"))
            assert stats.json()["tokens"]["cached"] == 0

    asyncio.run(scenario())


def test_who_loses_the_right_loses_what_was_declared(tmp_path):
    async def scenario() -> None:
        tenants = Registry.from_file(write(tmp_path, BOTH))
        async with shared(tmp_path / "model", tenants=tenants) as server:
            client = server.client
            await declare(client)
            await declare(client, "other", "bob")
            await tenants.reload()
            assert len(await names(client, "boss")) == 2, "nothing was taken away"
            write(tmp_path, BOTH.replace(RIGHT, "", 1))
            await tenants.reload()
            assert await names(client, "boss") == [("bob", "other")]
            write(tmp_path, BOTH.replace(RIGHT, ""))
            await tenants.reload()
            assert await names(client, "boss") == []
            assert await reused(client, "alice", "Why?") == 0
            assert await reused(client, "boss", "Why?") == 0

    (tmp_path / "model").mkdir()
    asyncio.run(scenario())


def test_a_right_that_is_lost_while_the_prompt_is_rendered_declares_nothing(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    async def scenario() -> None:
        tenants = registry(ALICE)
        async with shared(tmp_path, tenants=tenants) as server:
            render_chat = server.engine.tokenizer.render_chat

            def render(*arguments: Any, **settings: Any) -> str:
                tenants.roster = registry(FILE).roster
                return render_chat(*arguments, **settings)

            monkeypatch.setattr(server.engine.tokenizer, "render_chat", render)
            error_of(await declare(server.client), 403)
            assert await names(server.client, "boss") == []

    asyncio.run(scenario())


def test_tools_alone_may_be_public(tmp_path):
    template = "{% if tools %}{{ '<|im_start|>tools\\n' + (tools | tojson) }}{% endif %}" + CHATML

    async def scenario() -> None:
        settings = Settings(tool_call_parser="hermes")
        async with shared(tmp_path / "model", server=settings) as server:
            told = tiny_tokenizer_dir(tmp_path / "tools", chat_template=template)
            server.engine.tokenizer = Tokenizer.load(told)
            tokens = (await declare(server.client, tools=TOOLS)).json()["tokens"]
            assert tokens > 40
            assert await reused(server.client, "alice", "Why?", tools=TOOLS) == 0
            assert await reused(server.client, "bob", "Why?", tools=TOOLS) == tokens
            assert await reused(server.client, "bob", "Why?") < 4

    asyncio.run(scenario())


def test_it_is_public_still_after_the_engines_process_was_killed(tmp_path):
    async def scenario() -> None:
        async with running_in_a_process(tmp_path) as engine:
            transport = httpx2.ASGITransport(app=create_app(engine, tenants=registry(ALICE)))
            async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
                tokens = (await declare(client)).json()["tokens"]
                for _ in range(2):
                    assert await reused(client, "alice", "Why?") == 0
                    assert await reused(client, "bob", "Why?") == tokens
                    assert engine.pid is not None
                    os.kill(engine.pid, signal.SIGKILL)
                    await back(engine, engine.pid)
                assert await names(client, "alice") == [("alice", "hill")]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": None}, "messages", "invalid_value"),
        ({"messages": [], "tools": []}, "messages", "invalid_value"),
        ({"messages": "text"}, "messages", "invalid_type"),
        ({"messages": [{"content": "x"}]}, "messages.0.role", "missing_required_parameter"),
        ({"messages": SYSTEM, "tools": TOOLS}, "tools", "unsupported_parameter"),
        ({"messages": [{"role": "system", "content": "x" * 400}]}, "messages",
         "context_length_exceeded"),
        ({"messages": SYSTEM, "reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
    ],
)  # fmt: skip
def test_what_cannot_be_declared_is_refused(tmp_path, fields: dict, param: str, code: str):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            assert refused(await declare(server.client, **fields)) == (param, code)
            assert await names(server.client, "boss") == []
            assert (await declare(server.client)).status_code == 200

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["-", "a b", "x" * 65, "%C3%A9", "a%00b", "..%2F..", "a%0Ab"])
def test_a_name_that_cannot_be_one_is_refused(tmp_path, name: str):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            answer = await declare(server.client, name)
            assert answer.status_code in (400, 404)
            assert len(answer.text) < 300
            assert await names(server.client, "boss") == []

    asyncio.run(scenario())


def test_another_model_is_not_found_and_unknown_fields_are_listed(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            error_of(await declare(server.client, messages=SYSTEM, model="another"), 404)
            answer = await declare(server.client, messages=SYSTEM, model="tiny", sheep=1)
            assert answer.status_code == 200
            assert answer.headers["x-radixserve-ignored"] == "sheep"

    asyncio.run(scenario())


def test_less_than_a_block_is_refused_with_the_size_of_one(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path, page_size=256, num_pages=4) as server:
            error = error_of(await declare(server.client))
            assert error["param"] == "messages"
            assert "256 tokens" in error["message"]

    asyncio.run(scenario())


def test_a_server_without_a_prefix_cache_has_none_to_share(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path, prefix_cache=False) as server:
            error = error_of(await declare(server.client))
            assert error["code"] == "unsupported_feature"
            assert "--no-prefix-cache" in error["message"]

    asyncio.run(scenario())


def test_a_tenant_may_declare_so_many_and_others_still_some(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path, BOTH) as server:
            client = server.client
            for number in range(MOST_OF_A_TENANT):
                assert (await declare(client, f"p{number}")).status_code == 200
            error = error_of(await declare(client, "more"))
            assert error["code"] == "too_many_public_prefixes"
            assert (await declare(client, "p0")).status_code == 200, "it takes its own place"
            assert (await declare(client, "more", "bob")).status_code == 200
            await withdraw(client, "p1")
            assert (await declare(client, "more")).status_code == 200

    asyncio.run(scenario())


def test_on_an_open_server_anybody_may_declare_them(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            answer = await server.client.put(f"{PUBLIC}/hill", json={"messages": SYSTEM})
            assert answer.json()["tenant"] == ""
            for salt, count in (("a", 0), ("b", answer.json()["tokens"])):
                assert await reused(server.client, "alice", "Why?", cache_salt=salt) == count

    asyncio.run(scenario())


def test_the_audit_log_has_who_declared_what_by_name_and_nothing_of_its_text(tmp_path):
    path = tmp_path / "audit.jsonl"

    async def scenario() -> None:
        with Audit(path) as audit:
            async with shared(tmp_path / "model", audit=audit) as server:
                await declare(server.client)
                await declare(server.client, who="bob")
                await withdraw(server.client)
                await withdraw(server.client, "x" * 5000)

    (tmp_path / "model").mkdir()
    asyncio.run(scenario())
    written = path.read_text(encoding="utf-8")
    assert "people of the hill" not in written
    lines = [json.loads(line) for line in written.splitlines()]
    route = "/v1/cache/public/{prefix}"
    told = [(each["tenant"], each["route"], each["target"], each["status"]) for each in lines]
    assert told == [
        ("alice", f"PUT {route}", "hill", 200),
        ("bob", f"PUT {route}", "hill", 403),
        ("alice", f"DELETE {route}", "hill", 200),
        ("alice", f"DELETE {route}", "x" * 64, 404),
    ]
