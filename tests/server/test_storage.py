"""What a tenant's files may take on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from radixserve.server.app import create_app
from radixserve.server.batches import files, room
from radixserve.server.batches.room import FORM, Room
from radixserve.server.batches.store import Store
from radixserve.server.service import Settings
from tests.server.asking import CHAT, error_of
from tests.server.batching import ended, jsonl, line
from tests.server.fake import FakeFrontend
from tests.server.handed import scope
from tests.server.tenants.people import bearer, client_of, limited, registry

LIMIT = 10_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def client(frontend: FakeFrontend, directory: Path) -> Iterator[TestClient]:
    """Alice may store ``LIMIT`` bytes, bob twice as much."""
    settings = Settings(files_dir=directory, files_limit=2 * LIMIT)
    tenants = registry(limited(f"stored_bytes = {LIMIT}"))
    with client_of(frontend, tenants, settings=settings) as client:
        yield client


def upload(client: TestClient, data: bytes, who: str = "alice") -> Response:
    return client.post(
        "/v1/files",
        files={"file": ("in.jsonl", data)},
        data={"purpose": "batch"},
        headers=bearer(who),
    )


def make(client: TestClient, source: str) -> Response:
    body = {"input_file_id": source, "endpoint": CHAT}
    return client.post("/v1/batches", json=body, headers=bearer("alice"))


def left_over(directory: Path) -> list[Path]:
    return list(directory.glob("*.draft"))


def test_what_is_too_much_is_refused_with_what_to_do_until_something_is_deleted(
    client: TestClient, directory: Path
):
    first = upload(client, b"x" * 6000).json()["id"]
    error = error_of(upload(client, b"x" * 4001), 413)
    assert (error["code"], error["param"]) == ("storage_limit_exceeded", "file")
    assert "take 6000 of the 10000 bytes" in error["message"]
    assert "DELETE /v1/files/ID" in error["message"]
    assert upload(client, b"x" * 4000).status_code == 200
    error_of(upload(client, b"x"), 413)
    assert left_over(directory) == []
    client.delete(f"/v1/files/{first}", headers=bearer("alice"))
    assert upload(client, b"x" * 6000).status_code == 200


def test_each_tenants_files_count_for_it_alone(client: TestClient):
    assert upload(client, b"x" * LIMIT).status_code == 200
    assert upload(client, b"x" * (2 * LIMIT), "bob").status_code == 200
    for who in ("alice", "bob"):
        error_of(upload(client, b"x", who), 413)


def test_a_body_that_says_that_it_is_too_long_is_not_read(frontend: FakeFrontend, directory: Path):
    status, taken = asyncio.run(sent(frontend, directory, announced=True))
    assert (status, taken) == (413, 0)


def test_one_that_does_not_say_it_is_read_as_far_as_there_is_room(
    frontend: FakeFrontend, directory: Path
):
    status, taken = asyncio.run(sent(frontend, directory, announced=False))
    assert status == 413
    assert LIMIT < taken <= LIMIT + 2 * FORM
    assert left_over(directory) == []


async def sent(frontend: FakeFrontend, directory: Path, *, announced: bool) -> tuple[int, int]:
    """The status that an endless upload gets, and how many bytes of it were taken."""
    app = create_app(frontend, settings=Settings(files_dir=directory, files_limit=LIMIT))
    head = (
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n'
        b"content-type: application/octet-stream\r\n\r\n"
    )
    taken, statuses = 0, []

    async def receive() -> dict[str, Any]:
        nonlocal taken
        body = b"x" * 1000 if taken else head
        taken += len(body)
        return {"type": "http.request", "body": body, "more_body": True}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert (b"connection", b"close") in message["headers"]
            statuses.append(message["status"])

    headers = [(b"content-type", b"multipart/form-data; boundary=x")]
    if announced:
        headers.append((b"content-length", str(LIMIT + FORM + 1).encode()))
    await app(scope("/v1/files", headers), receive, send)
    [status] = statuses
    return status, taken


def test_of_two_uploads_at_once_only_what_fits_is_kept(
    client: TestClient, directory: Path, monkeypatch: pytest.MonkeyPatch
):
    def early(store: Store, owner: str, limit: int) -> Room:
        """As it was before the other one was stored, until the file is adopted."""
        exact = room.room_of(store, owner, limit)
        return exact if store.adopting.locked() else Room(0, 0, limit)

    monkeypatch.setattr(files, "room_of", early)
    assert upload(client, b"x" * 6000).status_code == 200
    assert "take 6000" in error_of(upload(client, b"x" * 6000), 413)["message"]
    assert left_over(directory) == []
    listed = client.get("/v1/files", headers=bearer("alice")).json()["data"]
    assert len(listed) == 1


def test_results_of_batches_count_and_without_room_no_batch_is_begun(client: TestClient):
    source = upload(client, jsonl([line(f"n{number}") for number in range(10)])).json()
    client.headers.update(bearer("alice"))
    batch = ended(client, make(client, source["id"]).json()["id"])
    result = client.get(f"/v1/files/{batch['output_file_id']}").json()
    assert result["bytes"] > 1000
    rest = LIMIT - source["bytes"] - result["bytes"]
    error_of(upload(client, b"x" * (rest + 1)), 413)
    filler = upload(client, b"x" * rest).json()["id"]
    error = error_of(make(client, source["id"]), 413)
    assert (error["code"], error["param"]) == ("storage_limit_exceeded", "input_file_id")
    client.delete(f"/v1/files/{filler}")
    assert make(client, source["id"]).status_code == 200


def test_results_count_before_their_batch_has_ended(client: TestClient, frontend: FakeFrontend):
    frontend.hold(after=1)
    client.headers.update(bearer("alice"))
    source = upload(client, jsonl([line("one")])).json()
    batch = make(client, source["id"]).json()
    assert frontend.asked.acquire(timeout=60)
    store: Store = client.app.state.store
    record = store.batch(batch["id"], "alice")
    assert record is not None
    store.part(record, "output").write_bytes(b"y" * 5000)
    rest = LIMIT - source["bytes"] - 5000
    error_of(upload(client, b"x" * (rest + 1)), 413)
    store.part(record, "output").write_bytes(b"")
    assert upload(client, b"x" * (rest + 1)).status_code == 200
    frontend.release()
    ended(client, batch["id"])


def test_so_many_files_are_enough(client: TestClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "MOST_FILES", 3)
    made = [upload(client, b"x").json()["id"] for _ in range(3)]
    assert "3 files" in error_of(upload(client, b"x"), 413)["message"]
    client.delete(f"/v1/files/{made[0]}", headers=bearer("alice"))
    assert upload(client, b"x").status_code == 200


def test_nothing_of_others_is_told(client: TestClient):
    upload(client, b"x" * 7777, "bob")
    upload(client, b"x" * LIMIT)
    assert "7777" not in json.dumps(error_of(upload(client, b"x"), 413))
