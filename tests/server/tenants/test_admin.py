"""The file of tenants, changed while the server runs: all at once, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.errors import EngineDeadError
from radixserve.server.app import create_app
from radixserve.server.tenants.registry import Registry
from radixserve.tenant import Terms
from radixserve.tenants.file import Roster, read_tenants
from radixserve.tenants.keys import hash_of, id_of
from tests.server.asking import chat, complete, error_of
from tests.server.fake import ANSWER, FakeFrontend
from tests.server.tenants.people import FILE, KEYS, bearer, client_of, write

BOSS = bearer("boss")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path)


@pytest.fixture
def client(frontend: FakeFrontend, path: Path) -> Iterator[TestClient]:
    with client_of(frontend, Registry.from_file(path)) as client:
        yield client


def reload(client: TestClient) -> Any:
    return client.post("/v1/admin/reload", headers=BOSS)


def put(client: TestClient, tenant: str, /, **settings: Any) -> Any:
    return client.put(f"/v1/admin/tenants/{tenant}", json=settings, headers=BOSS)


def test_tenants_are_listed_with_what_their_keys_are_called(client: TestClient):
    answer = client.get("/v1/admin/tenants", headers=BOSS)
    alice, _, boss, mute = answer.json()["data"]
    assert (alice["name"], alice["keys"]) == ("alice", [id_of(hash_of(KEYS["alice"]))])
    assert boss["admin"] is True
    assert mute["endpoints"] == []
    for name, key in KEYS.items():
        assert key not in answer.text, name
        assert hash_of(key) not in answer.text, name


def test_a_reload_takes_in_the_file_as_it_is_now(
    client: TestClient, frontend: FakeFrontend, path: Path
):
    assert frontend.terms == dict.fromkeys(("alice", "bob", "boss", "mute"), Terms())
    text = FILE.replace("[tenants.alice]", "[tenants.carol]\nweight = 3.0")
    path.write_text(text, encoding="utf-8")
    assert chat(client, headers=bearer("alice")).status_code == 200
    assert reload(client).json() == {"success": True, "tenants": 4}
    assert set(frontend.terms) == {"carol", "bob", "boss", "mute"}
    assert frontend.terms["carol"] == Terms(weight=3.0)
    assert sorted(map(str, frontend.purged)) == ["alice", "carol"]
    assert chat(client, headers=bearer("alice")).status_code == 200
    assert [request.tenant for request in frontend.requests] == ["alice", "carol"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tenants.a]\nsheep = 1", "line 2"),
        ("[tenants.a", "not TOML"),
        ("", "no key"),
        ("[tenants.a]", "no key"),
        (FILE + "\n[tenants.more.cache]\nguaranteed = -1", "guaranteed"),
        (FILE.replace(hash_of(KEYS["bob"]), hash_of(KEYS["alice"])), "also alice's"),
        (None, "No such file"),
    ],
)
def test_a_broken_file_is_refused_and_the_old_one_stays_in_force(
    client: TestClient, frontend: FakeFrontend, path: Path, text: str | None, words: str
):
    if text is None:
        path.unlink()
    else:
        path.write_text(text, encoding="utf-8")
    before = frontend.terms
    for _ in range(2):
        error = error_of(reload(client), 400)
        assert error["code"] == "invalid_tenants"
        assert words in error["message"]
    assert frontend.terms is before
    assert frontend.purged == []
    for name in ("alice", "bob"):
        assert chat(client, headers=bearer(name)).status_code == 200


def test_a_reload_forgets_nothing_of_what_was_used(client: TestClient, path: Path):
    text = FILE.replace("[tenants.alice]", "[tenants.alice]\nlimits.requests_per_minute = 2")
    path.write_text(text, encoding="utf-8")
    reload(client)
    for _ in range(2):
        assert chat(client, headers=bearer("alice")).status_code == 200
    for limit, status in (("2", 429), ("1", 429)):
        path.write_text(text.replace("minute = 2", f"minute = {limit}"), encoding="utf-8")
        reload(client)
        assert chat(client, headers=bearer("alice")).status_code == status
    path.write_text(FILE, encoding="utf-8")
    reload(client)
    assert chat(client, headers=bearer("alice")).status_code == 200
    [alice] = [each for each in used(client) if each["name"] == "alice"]
    assert (alice["requests"], alice["refused"]) == (5, {"requests": 2})


def used(client: TestClient) -> list[dict[str, Any]]:
    return list(client.get("/v1/admin/usage", headers=BOSS).json()["data"])


def test_settings_that_are_put_are_in_force_and_in_the_file(
    client: TestClient, frontend: FakeFrontend, path: Path
):
    settings = {"weight": 2.0, "limits": {"requests_per_minute": 1}, "cache": {"guaranteed": 0.5}}
    answer = put(client, "alice", **settings, priority=None).json()
    assert (answer["name"], answer["weight"]) == ("alice", 2.0)
    assert answer["limits"]["requests_per_minute"] == 1
    assert frontend.terms["alice"] == Terms(weight=2.0, guaranteed=0.5)
    assert read_tenants(path).tenants["alice"].weight == 2.0
    assert path.read_text(encoding="utf-8").startswith("# who may come in")
    assert [chat(client, headers=bearer("alice")).status_code for _ in range(2)] == [200, 429]
    assert put(client, "dave", keys=[hash_of("dave")]).status_code == 200
    assert complete(client).status_code == 401
    assert chat(client, headers={"x-api-key": "dave"}).status_code == 200


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("alice", {"weight": 0}, "weight"),
        ("alice", {"weight": "2"}, "weight"),
        ("alice", {"sheep": 1}, "sheep"),
        ("alice", {"name": "bob"}, "name"),
        ("alice", {"cache": {"guaranteed": 2}}, "guaranteed"),
        ("alice", {"limits": {"requests_per_minute": -1}}, "requests_per_minute"),
        ("alice", {"keys": [hash_of(KEYS["bob"])]}, "bob"),
        ("alice", {"keys": ["plain"]}, "never keys themselves"),
        ("self", {}, "no name"),
        ("a b", {}, "no name"),
        ("x" * 65, {}, "no name"),
        ("alice", {"limits": [[[]]]}, "limits"),
        ("alice", {"keys": [None]}, "keys"),
        ("alice", {"weight": 10**400}, "weight"),
    ],
)
def test_settings_that_cannot_be_change_nothing(
    client: TestClient, path: Path, name: str, settings: dict, words: str
):
    answer = put(client, name, **settings)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]
    assert path.read_text(encoding="utf-8") == FILE
    assert chat(client, headers=bearer("alice")).status_code == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"a":', b"\xff", b"[" * 100_000])
def test_settings_that_are_no_object_are_refused(client: TestClient, path: Path, body: bytes):
    headers = {**BOSS, "content-type": "application/json"}
    answer = client.put("/v1/admin/tenants/alice", content=body, headers=headers)
    assert answer.status_code == 400
    assert path.read_text(encoding="utf-8") == FILE


def test_a_file_that_cannot_be_written_changes_nothing(
    client: TestClient, path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("os.replace", fail)
    error = error_of(put(client, "alice", weight=2.0), 400)
    assert "Read-only file system" in error["message"]
    assert path.read_text(encoding="utf-8") == FILE
    assert [each.name for each in path.parent.iterdir() if ".lock" not in each.name] == [path.name]


def test_without_a_file_there_is_nothing_to_change(frontend: FakeFrontend):
    with TestClient(create_app(frontend)) as client:
        assert client.get("/v1/admin/tenants").json() == {"data": []}
        for answer in (
            client.post("/v1/admin/reload"),
            client.put("/v1/admin/tenants/alice", json={}),
        ):
            assert "--tenants" in error_of(answer, 400)["message"]
        complete(client)
        [everybody] = client.get("/v1/admin/usage").json()["data"]
        assert (everybody["name"], everybody["requests"]) == ("", 1)
        assert everybody["completion_tokens"] == len(ANSWER)


def test_usage_tells_what_each_tenant_has_used(client: TestClient, frontend: FakeFrontend):
    for _ in range(2):
        client.post("/v1/completions", json={"prompt": "abcd"}, headers=bearer("alice"))
    client.post("/v1/completions", json={"prompt": 3}, headers=bearer("bob"))
    alice, bob, boss, _ = used(client)
    assert alice == {
        "name": "alice",
        "running": 0,
        "requests": 2,
        "prompt_tokens": 8,
        "cached_tokens": 3,
        "completion_tokens": 2 * len(ANSWER),
        "refused": {},
        "remaining": {},
    }
    assert (bob["requests"], bob["prompt_tokens"]) == (1, 0)
    assert boss["requests"] == 0, "asking for usage is none"


@pytest.mark.parametrize(
    ("who", "name", "status", "purged"),
    [
        ("alice", "self", 200, ["alice"]),
        ("alice", "alice", 200, ["alice"]),
        ("alice", "bob", 403, []),
        ("alice", "nobody", 403, []),
        ("boss", "bob", 200, ["bob"]),
        ("boss", "self", 200, ["boss"]),
        ("boss", "nobody", 404, []),
        ("boss", "x" * 2000, 404, []),
    ],
)
def test_a_tenant_may_forget_its_own_and_an_administrator_anybodys(
    client: TestClient, frontend: FakeFrontend, who: str, name: str, status: int, purged: list
):
    answer = client.delete(f"/v1/cache/tenants/{name}", headers=bearer(who))
    assert answer.status_code == status
    assert frontend.purged == purged
    if status == 200:
        assert (answer.json()["dropped_pages"], answer.json()["held_pages"]) == (12, 3)
    else:
        assert len(answer.text) < 300


def test_everybodys_cache_is_an_administrators_to_forget(
    client: TestClient, frontend: FakeFrontend
):
    assert client.post("/reset_prefix_cache", headers=bearer("alice")).status_code == 403
    assert client.post("/reset_prefix_cache", headers=BOSS).status_code == 200
    assert frontend.purged == [None]


def test_a_reload_while_the_engine_is_dead_succeeds(
    client: TestClient, frontend: FakeFrontend, path: Path
):
    frontend.refuse = EngineDeadError("It has died.")
    path.write_text(FILE.replace("tenants.alice", "tenants.carol"), encoding="utf-8")
    assert reload(client).status_code == 200
    assert "carol" in frontend.terms


def test_a_reload_that_changes_many_names_asks_the_engine_once(
    client: TestClient, frontend: FakeFrontend, path: Path
):
    more = "\n".join(f"[tenants.t{number}]" for number in range(300))
    path.write_text(FILE + "\n" + more, encoding="utf-8")
    asked = frontend.resets
    assert reload(client).status_code == 200
    assert frontend.resets == asked + 1
    assert len(frontend.purged) == 300


def test_a_server_without_an_administrator_is_warned_of(
    client: TestClient, path: Path, caplog: pytest.LogCaptureFixture
):
    path.write_text(FILE.replace("admin = true", ""), encoding="utf-8")
    assert reload(client).status_code == 200
    assert "may administrate" in caplog.text


def test_the_last_administrator_stays_one(client: TestClient, path: Path):
    before = path.read_bytes()
    answer = client.put("/v1/admin/tenants/boss", json={}, headers=BOSS)
    assert "nobody could administrate" in error_of(answer, 400)["message"]
    assert path.read_bytes() == before
    assert client.get("/v1/admin/tenants", headers=BOSS).status_code == 200


def test_a_file_without_a_key_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    registry = Registry.from_file(write(tmp_path, "[tenants.a]"))
    assert registry.roster == Roster.of(registry.tenants.values())
    assert "nobody can use this server" in caplog.text
