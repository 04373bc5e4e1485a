"""Forgetting one session, and nothing beside it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.cache.namespace import Namespace, of_tenant
from radixserve.server.app import create_app
from radixserve.server.tenants.audit import Audit
from tests.engine.saying import TEXT
from tests.server.asking import COMPLETIONS, HANG, refused
from tests.server.fake import FakeFrontend
from tests.server.stack import Stack, cached, said
from tests.server.tenants.people import KEYS, bearer, client_of
from tests.server.tenants.sharing import ask, body, shared

PURGE = "/v1/cache/purge"
SALT = {"cache_salt": "session-7"}
NARROWED = ({}, SALT, {"cache_salt": "session-8"}, {"extra_key": "session-7"},
            {"cache_salt": "session-7", "extra_key": "x"})  # fmt: skip


async def purge(server: Stack, who: str = "alice", **fields: Any) -> dict[str, Any]:
    answer = await server.ask(PURGE, key=KEYS[who], **fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("fields", NARROWED[1:])
def test_it_forgets_exactly_what_was_asked_so(tmp_path, fields: dict[str, str]):
    async def scenario() -> None:
        async with shared(tmp_path, num_pages=1000) as server:
            for who in ("alice", "bob"):
                for each in NARROWED:
                    await ask(server, who, **each)
            await server.settle()
            free = server.engine.stats().pages_free
            told = await purge(server, **fields)
            assert (told["success"], told["tenant"]) == (True, "alice")
            assert told["dropped_pages"] > 0
            assert told["held_pages"] == 0
            # The answer may come before the engine's counts do.
            while server.engine.stats().pages_free != free + told["dropped_pages"]:
                await asyncio.sleep(0)
            for who in ("alice", "bob"):
                for each in NARROWED:
                    forgotten = who == "alice" and each == fields
                    assert (await ask(server, who, **each) == 0) == forgotten, (who, each)
            assert await ask(server, "alice", **fields) > 0

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_under_load_running_requests_keep_what_they_hold_and_publish_no_more(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            for fields in (SALT, {}):
                await ask(server, "alice", **fields)
            server.model.hold()
            sent = {**body(COMPLETIONS, most=30), **SALT}
            runs = asyncio.create_task(server.ask(key=KEYS["alice"], **sent))
            await server.steps(3)
            purging = asyncio.create_task(purge(server, **SALT))
            while not server.engine._streams._asked:
                await asyncio.sleep(0)
            server.model.free()
            assert (await purging)["held_pages"] > 0
            answer = await runs
            assert said(answer) == TEXT[:30]
            assert cached(answer) > 0
            assert await ask(server, "alice", **SALT) == 0
            assert await ask(server, "alice") > 0
            assert await purge(server, cache_salt="nobody's") == {
                "success": True,
                "tenant": "alice",
                "dropped_pages": 0,
                "held_pages": 0,
            }
            await server.settle()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("who", "tenant", "status", "forgotten"),
    [
        ("alice", None, 200, "alice"),
        ("alice", "self", 200, "alice"),
        ("alice", "alice", 200, "alice"),
        ("alice", "bob", 403, None),
        ("alice", "nobody", 403, None),
        ("boss", "bob", 200, "bob"),
        ("boss", "nobody", 404, None),
        ("mute", None, 403, None),
    ],
)
def test_a_tenant_may_forget_sessions_of_its_own_and_an_administrator_anybodys(
    frontend: FakeFrontend, who: str, tenant: str | None, status: int, forgotten: str | None
):
    with client_of(frontend) as client:
        answer = client.post(PURGE, json={**SALT, "tenant": tenant}, headers=bearer(who))
    assert answer.status_code == status
    expected = of_tenant(forgotten, Namespace(salt=SALT["cache_salt"]).key())
    assert frontend.forgotten == ([] if forgotten is None else [expected])
    if status == 200:
        assert (answer.json()["dropped_pages"], answer.json()["held_pages"]) == (4, 1)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "cache_salt", "invalid_value"),
        ({"tenant": "self"}, "cache_salt", "invalid_value"),
        ({"cache_salt": ""}, "cache_salt", "invalid_value"),
        ({"cache_salt": "x" * 513}, "cache_salt", "invalid_value"),
        ({"extra_key": ""}, "extra_key", "invalid_value"),
        ({"extra_key": 7}, "extra_key", "invalid_type"),
        ({"cache_salt": ["s"]}, "cache_salt", "invalid_type"),
        ({"cache_salt": "s", "tenant": 1}, "tenant", "invalid_type"),
    ],
)
def test_what_cannot_be_forgotten_is_refused(
    frontend: FakeFrontend, fields: dict, param: str, code: str
):
    with client_of(frontend) as client:
        answer = client.post(PURGE, json=fields, headers=bearer("alice"))
        assert refused(answer) == (param, code)
        large = {**SALT, "x": "y" * 2**16}
        assert client.post(PURGE, json=large, headers=bearer("alice")).status_code == 413
    assert frontend.forgotten == []


def test_on_an_open_server_a_salt_is_forgotten_for_everybody(frontend: FakeFrontend):
    with TestClient(create_app(frontend)) as client:
        answer = client.post(PURGE, json=SALT)
        assert answer.json()["tenant"] == ""
    assert frontend.forgotten == [Namespace(salt=SALT["cache_salt"]).key()]


def test_a_misspelt_field_forgets_nothing(frontend: FakeFrontend):
    with client_of(frontend) as client:
        answer = client.post(PURGE, json={**SALT, "tenent": "alice"}, headers=bearer("boss"))
        assert refused(answer)[0] == "tenent"
    assert frontend.forgotten == []


def test_the_audit_log_has_no_salt(frontend: FakeFrontend, tmp_path: Path):
    path = tmp_path / "audit.jsonl"
    with Audit(path) as audit, client_of(frontend, audit=audit) as client:
        client.post(PURGE, json=SALT, headers=bearer("alice"))
    [line] = path.read_text(encoding="utf-8").splitlines()
    assert SALT["cache_salt"] not in line
    assert json.loads(line)["route"] == f"POST {PURGE}"
