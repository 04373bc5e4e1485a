"""Who is let in, and what those are told who are not."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from httpx2 import Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from radixserve.server.app import create_app
from radixserve.server.messages.errors import is_messages
from radixserve.server.tenants.registry import Registry
from radixserve.tenants.file import Roster
from radixserve.tenants.keys import LONGEST_KEY
from tests.server.asking import USER, chat, complete, error_of
from tests.server.fake import MODEL, FakeFrontend
from tests.server.messages.asking import error_of as anthropic_error_of
from tests.server.tenants.people import FILE, KEYS, bearer, client_of, registry

NO_KEY_NEEDED = {"/health", "/ping", "/ready", "/version", "/", "/cache", "/web/chat.js"}


@pytest.fixture
def client(frontend: FakeFrontend) -> Iterator[TestClient]:
    with client_of(frontend) as client:
        yield client


def every_request() -> list[tuple[str, str]]:
    """A request for each method of each route that there is, also of those to come."""
    found = []
    for route in create_app(FakeFrontend()).routes:
        if isinstance(route, Mount):
            assert route.path == "/web", "a new mount has to be looked at"
            found.append(("GET", "/web/chat.js"))
            continue
        assert isinstance(route, Route)
        path = re.sub(r"\{[^}]*\}", "bob", route.path)
        found += [(method, path) for method in sorted(route.methods or ())]
    return found


def needing_keys() -> list[tuple[str, str]]:
    return [each for each in every_request() if each[1] not in NO_KEY_NEEDED]


def test_all_but_a_few_paths_need_a_key():
    paths = {path for _, path in every_request()}
    assert paths >= NO_KEY_NEEDED
    assert len(paths - NO_KEY_NEEDED) >= 15


def refusal(answer: Response, path: str, status: int) -> tuple[str, str]:
    """The type and the code of an error, in the shape of the API that ``path`` is of."""
    if is_messages(path):
        error = anthropic_error_of(answer, status)
        return error["type"], error["details"]["error_code"]
    error = error_of(answer, status)
    return error["type"], error["code"]


@pytest.mark.parametrize(("method", "path"), needing_keys())
def test_without_a_valid_key_every_route_says_401(client: TestClient, method: str, path: str):
    for headers in ({}, {"authorization": "Bearer rsk_nobody"}, {"x-api-key": "rsk_nobody"}):
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        if method != "HEAD":
            assert refusal(answer, path, 401) == ("authentication_error", "invalid_api_key")


@pytest.mark.parametrize(("method", "path"), needing_keys())
def test_a_key_without_any_right_opens_no_route(client: TestClient, method: str, path: str):
    answer = client.request(method, path, headers=bearer("mute"))
    assert answer.status_code == 403
    if method != "HEAD":
        assert refusal(answer, path, 403) == ("permission_error", "permission_denied")


@pytest.mark.parametrize("path", sorted(NO_KEY_NEEDED))
def test_those_few_are_answered_without_one(client: TestClient, path: str):
    assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/health/", "http://testserver//health", "/health/../metrics", "/webx", "/web", "/Metrics",
     "/nothing", "/v1", "/version%2f..%2fmetrics", "/docs", "/openapi.json"],
)  # fmt: skip
def test_a_path_that_only_looks_like_an_open_one_needs_a_key(client: TestClient, path: str):
    assert client.get(path).status_code == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/reset_prefix_cache"),
        ("POST", "/flush_cache"),
        ("GET", "/v1/admin/tenants"),
        ("PUT", "/v1/admin/tenants/alice"),
        ("POST", "/v1/admin/reload"),
        ("GET", "/v1/admin/usage"),
        ("DELETE", "/v1/cache/tenants/bob"),
        ("GET", "/metrics"),
        ("GET", "/load"),
        ("GET", "/server_info"),
    ],
)
def test_a_tenant_cannot_do_what_is_for_administrators(
    client: TestClient, frontend: FakeFrontend, method: str, path: str
):
    error = error_of(client.request(method, path, headers=bearer("alice")), 403)
    assert error["code"] == "permission_denied"
    assert frontend.purged == []
    if method == "GET":
        assert client.get(path, headers=bearer("boss")).status_code == 200


def test_either_header_is_taken(client: TestClient, frontend: FakeFrontend):
    key = KEYS["alice"]
    for headers in (
        {"authorization": f"Bearer {key}"},
        {"authorization": f"bearer   {key} "},
        {"x-api-key": key},
        {"x-api-key": key, "authorization": f"Bearer {key}"},
    ):
        assert chat(client, headers=headers).status_code == 200
    assert {request.tenant for request in frontend.requests} == {"alice"}


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ([("authorization", "Bearer ")], 401, "is needed"),
        ([("x-api-key", "")], 401, "is needed"),
        ([("authorization", KEYS["alice"])], 401, "must be `Bearer KEY`"),
        ([("authorization", f"Basic {KEYS['alice']}")], 401, "must be `Bearer KEY`"),
        ([("authorization", "Bearer " + "k" * (LONGEST_KEY + 1))], 401, "longer than"),
        ([("x-api-key", "k" * 60_000)], 401, "longer than"),
        ([("authorization", "Bearer \xff\xfe")], 401, "not valid"),
        ([("authorization", f"Bearer {KEYS['alice']} {KEYS['bob']}")], 401, "not valid"),
        ([("authorization", f"Bearer {KEYS['alice']},{KEYS['bob']}")], 401, "not valid"),
        ([("authorization", f"Bearer {KEYS['alice']}")] * 2, 400, "2 times"),
        ([("x-api-key", KEYS["alice"]), ("x-api-key", KEYS["bob"])], 400, "2 times"),
        ([("authorization", f"Bearer {KEYS['alice']}"), ("x-api-key", KEYS["bob"])], 400,
         "different keys"),
    ],
)  # fmt: skip
def test_what_is_no_single_key_is_told_so(
    client: TestClient, frontend: FakeFrontend, headers: list, status: int, words: str
):
    sent = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    answer = client.post("/v1/chat/completions", json={"messages": USER}, headers=sent)
    error = error_of(answer, status)
    assert error["type"] == "authentication_error"
    assert words in error["message"]
    assert "rsk_" not in answer.text
    assert frontend.requests == []
    assert chat(client, headers=bearer("alice")).status_code == 200


def test_a_revoked_key_is_told_exactly_what_an_unknown_one_is(frontend: FakeFrontend):
    before = registry()
    with client_of(frontend, before) as client:
        assert chat(client, headers=bearer("alice")).status_code == 200
        before.roster = registry(FILE.replace("tenants.alice", "tenants.carol", 1)).roster
        assert chat(client, headers=bearer("alice")).status_code == 200, "the key has moved"
        before.roster = registry(
            FILE.partition("[tenants.bob]")[2].join(["[tenants.bob]", ""])
        ).roster
        revoked = chat(client, headers=bearer("alice"))
        unknown = chat(client, headers={"authorization": "Bearer rsk_never"})
    assert error_of(revoked, 401) == error_of(unknown, 401)
    differing = {"x-request-id"}
    for answer in (revoked, unknown):
        assert set(answer.headers) == set(revoked.headers)
    for name in set(revoked.headers) - differing:
        assert revoked.headers[name] == unknown.headers[name]


def test_a_model_that_is_not_ones_own_is_neither_listed_nor_served(frontend: FakeFrontend):
    text = FILE.replace("[tenants.alice]", '[tenants.alice]\nmodels = ["another"]')
    with client_of(frontend, registry(text)) as client:
        assert client.get("/v1/models", headers=bearer("alice")).json()["data"] == []
        one = client.get(f"/v1/models/{MODEL}", headers=bearer("alice"))
        assert error_of(one, 403)["code"] == "permission_denied"
        assert error_of(chat(client, headers=bearer("alice")), 403)["code"] == "permission_denied"
        assert client.get("/v1/models", headers=bearer("bob")).json()["data"][0]["id"] == MODEL
        assert chat(client, headers=bearer("bob")).status_code == 200
    assert [request.tenant for request in frontend.requests] == ["bob"]


def test_an_open_server_looks_at_no_key(client: TestClient, frontend: FakeFrontend):
    with TestClient(create_app(frontend)) as open_client:
        for headers in ({}, {"authorization": "Bearer -"}, {"authorization": "Basic x"}):
            assert chat(open_client, headers=headers).status_code == 200
        assert complete(open_client).status_code == 200
        assert open_client.get("/metrics").status_code == 200
        assert open_client.post("/reset_prefix_cache").status_code == 200
    assert {request.tenant for request in frontend.requests} == {""}


def test_keys_alone_close_the_server_to_those_who_have_none(frontend: FakeFrontend):
    tenants = Registry(Roster.of_keys(["one", "two"]))
    with client_of(frontend, tenants) as client:
        for key in ("one", "two"):
            headers = {"x-api-key": key}
            assert chat(client, headers=headers, priority=-5).status_code == 200
            assert client.get("/metrics", headers=headers).status_code == 200
            assert client.post("/flush_cache", headers=headers).status_code == 200
        assert chat(client, headers={"x-api-key": "three"}).status_code == 401
        assert chat(client).status_code == 401
    assert {(each.tenant, each.priority) for each in frontend.requests} == {("default", -5)}
