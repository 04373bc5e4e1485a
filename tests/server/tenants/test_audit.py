"""The audit log: a line for each request, with nothing in it that is secret."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.errors import ConfigError
from radixserve.server.app import create_app
from radixserve.server.tenants.audit import Audit
from tests.server.asking import chat, complete
from tests.server.fake import ANSWER, MODEL, FakeFrontend
from tests.server.handed import hand
from tests.server.tenants.people import KEYS, bearer, client_of, registry


@contextmanager
def audited(path: Path, frontend: FakeFrontend) -> Iterator[TestClient]:
    with Audit(path) as audit, client_of(frontend, audit=audit) as client:
        yield client


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_a_line_says_who_asked_for_what_and_what_it_cost(path: Path, frontend: FakeFrontend):
    with audited(path, frontend) as client:
        for _ in range(2):
            answer = chat(client, headers={**bearer("alice"), "x-request-id": "mine"})
    _, line = lines(path)
    usage = answer.json()["usage"]
    assert datetime.now(UTC) - datetime.fromisoformat(line.pop("time")) < timedelta(minutes=5)
    assert 0 < line.pop("duration") < 300
    assert line == {
        "request_id": "mine",
        "tenant": "alice",
        "route": "POST /v1/chat/completions",
        "target": None,
        "model": MODEL,
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens"] - 1,
        "completion_tokens": len(ANSWER),
        "status": 200,
    }


def test_refusals_are_there_too_and_paths_are_those_of_the_documentation(
    path: Path, frontend: FakeFrontend
):
    with audited(path, frontend) as client:
        complete(client)
        chat(client, headers=bearer("alice"), n=0)
        client.get("/v1/models/secret-name", headers=bearer("alice"))
        client.get("/nowhere/secret-name", headers=bearer("alice"))
        client.put("/v1/admin/tenants/alice", json={}, headers=bearer("bob"))
        client.delete("/v1/cache/tenants/alice", headers=bearer("boss"))
        client.get("/health")
    names = ("tenant", "route", "target", "status")
    found = [tuple(line[name] for name in names) for line in lines(path)]
    assert found == [
        (None, "POST /v1/completions", None, 401),
        ("alice", "POST /v1/chat/completions", None, 400),
        ("alice", "GET /v1/models/{name:path}", None, 404),
        ("alice", "GET unknown", None, 404),
        ("bob", "PUT /v1/admin/tenants/{tenant}", "alice", 403),
        ("boss", "DELETE /v1/cache/tenants/{tenant}", "alice", 200),
    ]
    assert "secret-name" not in path.read_text(encoding="utf-8")


def test_who_hangs_up_is_there_as_499(path: Path, frontend: FakeFrontend):
    async def scenario() -> None:
        frontend.hold()
        gone = asyncio.Event()
        headers = [(b"x-api-key", KEYS["alice"].encode())]
        with Audit(path) as audit:
            app = create_app(frontend, tenants=registry(), audit=audit)
            visit = asyncio.create_task(
                hand(app, "/v1/completions", {"prompt": "abc"}, headers=headers, gone=gone)
            )
            while not frontend.requests:
                await asyncio.sleep(0)
            gone.set()
            await visit

    asyncio.run(scenario())
    [line] = lines(path)
    assert (line["tenant"], line["status"]) == ("alice", 499)


def test_a_log_that_was_rotated_goes_on_in_the_new_file(path: Path, frontend: FakeFrontend):
    aside = path.with_suffix(".1")
    with Audit(path) as audit, client_of(frontend, audit=audit) as client:
        chat(client, headers=bearer("alice"))
        while not path.read_text(encoding="utf-8"):
            pass  # another thread writes it
        path.rename(aside)
        chat(client, headers=bearer("bob"))
    assert [line["tenant"] for line in lines(aside)] == ["alice"]
    assert [line["tenant"] for line in lines(path)] == ["bob"]


def test_it_is_appended_to_what_is_there(path: Path, frontend: FakeFrontend):
    for name in ("alice", "bob"):
        with audited(path, frontend) as client:
            chat(client, headers=bearer(name))
    assert [line["tenant"] for line in lines(path)] == ["alice", "bob"]


def test_a_file_that_cannot_be_written_is_told_before_anything_is_served(tmp_path: Path):
    for path in (tmp_path, tmp_path / "nowhere" / "log"):
        with pytest.raises(ConfigError, match="cannot be written"):
            Audit(path)
