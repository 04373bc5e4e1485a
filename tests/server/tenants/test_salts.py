"""A salt narrows what its tenant finds, and makes nobody somebody else."""

from __future__ import annotations

import asyncio

import pytest

from radixserve.cache.namespace import Namespace
from tests.server.tenants.people import KEYS
from tests.server.tenants.sharing import ROUTES, ask, body, param_of, shared


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
