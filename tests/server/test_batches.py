"""Files, and batches of requests that are answered when nobody else waits."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from radixserve.engine.messages import EngineStats
from radixserve.errors import ConfigError
from radixserve.server.app import create_app
from radixserve.server.batches import files, lines, worker
from radixserve.server.batches.store import Store
from radixserve.server.service import Settings
from tests.server.asking import CHAT, HANG, USER, chat, error_of, refused
from tests.server.batching import ended, jsonl, line
from tests.server.fake import ANSWER, FakeFrontend
from tests.server.sockets import serving


def upload(client: TestClient, data: bytes, purpose: str = "batch") -> Response:
    return client.post("/v1/files", files={"file": ("in.jsonl", data)}, data={"purpose": purpose})


def batch_of(client: TestClient, rows: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    source = upload(client, jsonl(rows)).json()["id"]
    body = {"input_file_id": source, "endpoint": CHAT, "completion_window": "24h", **fields}
    made = client.post("/v1/batches", json=body)
    assert made.status_code == 200, made.text
    return dict(made.json())


def results(client: TestClient, file_id: str) -> dict[str, dict[str, Any]]:
    """The lines of a file of results by their custom ids."""
    text = client.get(f"/v1/files/{file_id}/content").text
    rows = [json.loads(each) for each in text.splitlines()]
    found = {row["custom_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture
def app_settings(tmp_path: Path) -> Settings:
    return Settings(files_dir=tmp_path / "files")


@pytest.fixture
def client(frontend: FakeFrontend, app_settings: Settings) -> Iterator[TestClient]:
    app = create_app(frontend, settings=app_settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def test_a_batch_is_answered_line_by_line_at_the_lowest_priority(
    client: TestClient, frontend: FakeFrontend
):
    made = batch_of(
        client, [line(f"n{i}", max_tokens=3) for i in range(40)], metadata={"for": "me"}
    )
    assert made["object"] == "batch"
    assert made["metadata"] == {"for": "me"}
    batch = ended(client, made["id"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
    assert batch["error_file_id"] is None
    found = results(client, batch["output_file_id"])
    assert set(found) == {f"n{i}" for i in range(40)}
    for row in found.values():
        assert row["error"] is None
        assert row["response"]["status_code"] == 200
        assert row["response"]["body"]["choices"][0]["message"]["content"] == ANSWER[:3]
        assert row["response"]["request_id"]
    assert {request.priority for request in frontend.requests} == {2**31 - 1}
    assert client.get("/v1/batches").json()["data"][0]["id"] == batch["id"]


def test_vectors_are_made_by_batches_too(client: TestClient, frontend: FakeFrontend):
    url = "/v1/embeddings"
    rows = [{**line(each, url), "body": {"input": [each, "b"]}} for each in ("one", "two")]
    batch = ended(client, batch_of(client, rows, endpoint=url)["id"])
    assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    body = results(client, batch["output_file_id"])["two"]["response"]["body"]
    assert [len(each["embedding"]) for each in body["data"]] == [4, 4]
    assert {request.priority for request in frontend.requests} == {2**31 - 1}


def test_lines_that_are_refused_are_in_a_file_of_their_own(client: TestClient):
    rows = [line("good"), line("bad", temperature=-1), line("long", messages=[USER[0]] * 300)]
    batch = ended(client, batch_of(client, rows)["id"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    assert set(results(client, batch["output_file_id"])) == {"good"}
    wrong = results(client, batch["error_file_id"])
    assert set(wrong) == {"bad", "long"}
    assert wrong["bad"]["response"]["status_code"] == 400
    assert wrong["bad"]["response"]["body"]["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("data", "code", "number"),
    [
        (b"", "empty_file", None),
        (b"\n\n", "empty_file", None),
        (b"not json\n", "invalid_json_line", 1),
        (b"\xff\xfe\n", "invalid_json_line", 1),
        (jsonl([line("a")]) + b"[]\n", "invalid_json_line", 2),
        (b"[" * 100_000 + b"\n", "invalid_json_line", 1),
        (jsonl([line("a"), line("a")]), "duplicate_custom_id", 2),
        (jsonl([line("")]), "invalid_custom_id", 1),
        (jsonl([line("a", method="GET")]), "invalid_method", 1),
        (jsonl([line("a", url="/v1/completions")]), "mismatched_url", 1),
        (jsonl([line("a", stream=True)]), "invalid_request", 1),
        (jsonl([{"custom_id": "a", "method": "POST", "url": CHAT}]), "invalid_json_line", 1),
    ],
)
def test_a_file_that_is_no_batch_fails_and_says_where(
    client: TestClient, frontend: FakeFrontend, data: bytes, code: str, number: int | None
):
    source = upload(client, data).json()["id"]
    made = client.post("/v1/batches", json={"input_file_id": source, "endpoint": CHAT}).json()
    batch = ended(client, made["id"])
    assert batch["status"] == "failed"
    [error] = batch["errors"]["data"]
    assert (error["code"], error["line"]) == (code, number)
    assert frontend.requests == []


def test_lines_too_many_or_too_long_fail_the_batch(tmp_path: Path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(jsonl([line(str(i)) for i in range(lines.MOST_LINES + 1)]))
    _, [error] = lines.validate(path, CHAT, 1000)
    assert error.code == "too_many_tasks"
    path.write_bytes(jsonl([line("a", user="x" * 1000)]))
    _, [error] = lines.validate(path, CHAT, 1000)
    assert (error.code, error.line) == ("invalid_json_line", 1)
    path.write_bytes(b"x\n" * 1000)
    _, errors = lines.validate(path, CHAT, 1000)
    assert len(errors) == lines.MOST_ERRORS


def test_a_batch_waits_while_clients_wait(
    client: TestClient, frontend: FakeFrontend, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "TICK", 0.01)
    looks, stats = threading.Semaphore(0), frontend.stats

    def looked() -> EngineStats:
        looks.release()
        return stats()

    frontend.stats = looked  # type: ignore[method-assign]
    frontend.waiting = 5
    made = batch_of(client, [line("a"), line("b")])
    chat(client)
    for _ in range(20):
        assert looks.acquire(timeout=HANG)
    assert len(frontend.requests) == 1
    frontend.waiting = 0
    assert ended(client, made["id"])["request_counts"]["completed"] == 2


def test_a_cancelled_batch_keeps_what_was_answered(client: TestClient, frontend: FakeFrontend):
    frontend.waiting = 0
    rows = [line(f"n{i}") for i in range(200)]
    frontend.hold()
    made = batch_of(client, rows)
    assert frontend.asked.acquire(timeout=HANG)
    assert client.post(f"/v1/batches/{made['id']}/cancel").json()["status"] == "cancelling"
    frontend.release()
    batch = ended(client, made["id"])
    assert batch["status"] == "cancelled"
    counts = batch["request_counts"]
    assert 0 < counts["completed"] < 200
    assert len(results(client, batch["output_file_id"])) == counts["completed"]
    error = error_of(client.post(f"/v1/batches/{made['id']}/cancel"))
    assert "cancelled" in error["message"]


def test_a_batch_goes_on_where_it_was_when_the_server_ended(
    frontend: FakeFrontend, app_settings: Settings
):
    rows = [line(f"n{i}") for i in range(60)]
    gate = threading.Event()

    class Slow(FakeFrontend):
        """Answers twenty requests, then none."""

        async def generate(self, request):
            if len(self.requests) >= 20:
                gate.set()
                self.hold()
            async for delta in super().generate(request):
                yield delta

    with TestClient(create_app(Slow(), settings=app_settings)) as first:
        made = batch_of(first, rows)
        assert gate.wait(HANG)
    assert app_settings.files_dir is not None
    [part] = app_settings.files_dir.glob("*.output.part")
    whole = len(part.read_bytes().splitlines())
    assert whole > 0
    with part.open("ab") as file:
        file.write(b'{"custom_id": "torn')
    with TestClient(create_app(frontend, settings=app_settings)) as second:
        batch = ended(second, made["id"])
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
        assert set(results(second, batch["output_file_id"])) == {f"n{i}" for i in range(60)}
    assert len(frontend.requests) == 60 - whole


def test_a_batch_whose_time_is_over_ends_with_what_there_is(
    frontend: FakeFrontend, app_settings: Settings
):
    assert app_settings.files_dir is not None
    app = create_app(frontend, settings=app_settings)
    frontend.waiting = 1
    with TestClient(app) as client:
        made = batch_of(client, [line("a")])
        store = Store(app_settings.files_dir)
    frontend.waiting = 0
    batch = store.batch(made["id"], "")
    assert batch is not None
    batch.expires_at = 1
    store.save(batch)
    with TestClient(create_app(frontend, settings=app_settings)) as client:
        assert ended(client, made["id"])["status"] == "expired"
    assert frontend.requests == []


def test_an_overloaded_server_is_asked_again_and_a_broken_one_not_for_ever(
    client: TestClient, frontend: FakeFrontend, monkeypatch: pytest.MonkeyPatch
):
    from radixserve.errors import OverloadedError

    frontend.refuse = OverloadedError("full", retry_after=0.01)
    made = batch_of(client, [line("a")])
    for _ in range(2):
        assert frontend.asked.acquire(timeout=HANG)
    frontend.refuse = None
    assert ended(client, made["id"])["request_counts"]["completed"] == 1
    frontend.fail_after = 0
    monkeypatch.setattr("radixserve.server.batches.worker.TRIES", 2)
    batch = ended(client, batch_of(client, [line("b")])["id"])
    assert batch["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
    assert results(client, batch["error_file_id"])["b"]["response"]["status_code"] == 500


# Files


def test_a_file_is_kept_listed_read_and_deleted(client: TestClient):
    data = jsonl([line("a")])
    made = upload(client, data).json()
    assert made["bytes"] == len(data)
    assert made["filename"] == "in.jsonl"
    assert made["purpose"] == "batch"
    assert "owner" not in made
    assert client.get(f"/v1/files/{made['id']}").json() == made
    assert client.get(f"/v1/files/{made['id']}/content").content == data
    assert client.get("/v1/files").json()["data"] == [made]
    assert client.get("/v1/files?purpose=batch_output").json()["data"] == []
    gone = client.delete(f"/v1/files/{made['id']}").json()
    assert gone == {"id": made["id"], "object": "file", "deleted": True}
    assert error_of(client.get(f"/v1/files/{made['id']}"), 404)["code"] == "not_found"


def test_lists_come_in_pages(client: TestClient):
    made = {upload(client, b"x").json()["id"] for _ in range(5)}
    seen: list[str] = []
    after = ""
    while True:
        page = client.get(f"/v1/files?limit=2{after}").json()
        seen += [each["id"] for each in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert set(seen) == made
    assert len(seen) == 5
    for limit in ("0", "x", "101", "-1", "9" * 400):
        assert refused(client.get(f"/v1/files?limit={limit}"))[0] == "limit"


@pytest.mark.parametrize(
    "identity", ["file-x", "..%2f..%2fetc%2fpasswd", "file-" + "0" * 32, "x" * 5000, "batch_"]
)
def test_ids_of_nothing_are_not_found(client: TestClient, identity: str):
    for path in (f"/v1/files/{identity}", f"/v1/batches/{identity}"):
        assert client.get(path).status_code == 404
    assert client.post(f"/v1/batches/{identity}/cancel").status_code == 404


def test_uploads_that_cannot_be_are_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch):
    assert refused(upload(client, b"x", purpose="fine-tune"))[0] == "purpose"
    assert refused(client.post("/v1/files", data={"purpose": "batch"}, files={"f": b""}))[0] == (
        "file"
    )
    assert error_of(client.post("/v1/files", json={}), 415)["param"] == "content-type"
    broken = {"content-type": "multipart/form-data; boundary=x"}
    assert refused(client.post("/v1/files", content=b"nonsense", headers=broken))[0] == "file"
    monkeypatch.setattr(files, "LARGEST_FILE", 1000)
    assert error_of(upload(client, b"x" * 2000), 413)["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"completion_window": "1 day"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "999999h"}, "completion_window"),
        ({"metadata": {"k" * 100: "v"}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ],
)
def test_batches_that_cannot_be_are_refused(client: TestClient, fields: dict[str, Any], param: str):
    source = upload(client, jsonl([line("a")])).json()["id"]
    body = {"input_file_id": source, "endpoint": CHAT, **fields}
    assert refused(client.post("/v1/batches", json=body))[0] == param


def test_fields_of_a_batch_without_effect_are_listed(client: TestClient):
    source = upload(client, jsonl([line("a")])).json()["id"]
    body = {"input_file_id": source, "endpoint": CHAT, "sheep": 1}
    made = client.post("/v1/batches", json=body)
    assert made.headers["x-radixserve-ignored"] == "sheep"


def test_the_input_of_a_batch_stays_while_it_is_read(client: TestClient, frontend: FakeFrontend):
    frontend.waiting = 1
    made = batch_of(client, [line("a")])
    assert refused(client.delete(f"/v1/files/{made['input_file_id']}"))[0] == "file_id"
    frontend.waiting = 0
    ended(client, made["id"])
    assert client.delete(f"/v1/files/{made['input_file_id']}").status_code == 200


def test_without_a_directory_there_are_no_files_and_one_that_cannot_be_is_named(tmp_path: Path):
    with TestClient(create_app(FakeFrontend())) as client:
        error = error_of(client.get("/v1/files"), 501)
        assert "--files-dir" in error["message"]
        assert error_of(client.post("/v1/batches", json={"endpoint": 5}), 501) == error
    taken = tmp_path / "file"
    taken.touch()
    with pytest.raises(ConfigError, match="Cannot keep files"):
        create_app(FakeFrontend(), settings=Settings(files_dir=taken))


def test_openais_client_runs_a_batch(frontend: FakeFrontend, app_settings: Settings):
    from openai import OpenAI

    with serving(create_app(frontend, settings=app_settings)) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
        source = client.files.create(file=("in.jsonl", jsonl([line("a")])), purpose="batch")
        batch = client.batches.create(
            input_file_id=source.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        until = time.monotonic() + HANG
        while batch.status != "completed" and time.monotonic() < until:
            time.sleep(0.01)
            batch = client.batches.retrieve(batch.id)
        assert batch.output_file_id is not None
        [row] = client.files.content(batch.output_file_id).text.splitlines()
        assert json.loads(row)["custom_id"] == "a"
        assert [each.id for each in client.batches.list()] == [batch.id]
        client.close()
