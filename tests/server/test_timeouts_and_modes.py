"""What a client may say about time and about the cache."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.server.asking import chat, complete, refused
from tests.server.fake import FakeFrontend


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (None, "on"),
        ({}, "on"),
        ({"mode": None}, "on"),
        ({"mode": "on"}, "on"),
        ({"mode": "read-only"}, "read-only"),
        ({"mode": "no-store"}, "read-only"),
        ({"mode": "off"}, "off"),
    ],
)
def test_the_cache_is_used_as_the_client_says(
    client: TestClient, frontend: FakeFrontend, said: object, meant: str
):
    assert chat(client, cache=said).status_code == 200
    assert complete(client, cache=said).status_code == 200
    assert [request.cache for request in frontend.requests] == [meant, meant]


@pytest.mark.parametrize("said", [{"mode": "sometimes"}, {"mode": 1}, "off", {"ttl": "5m"}])
def test_what_nobody_can_do_with_the_cache_is_refused(client: TestClient, said: object):
    param, code = refused(chat(client, cache=said))
    assert param is not None
    assert param.startswith("cache")
    assert code in ("invalid_type", "invalid_value")


def test_a_timeout_reaches_the_engine(client: TestClient, frontend: FakeFrontend):
    assert chat(client, timeout=2.5).status_code == 200
    assert complete(client).status_code == 200
    assert [request.timeout for request in frontend.requests] == [2.5, None]


@pytest.mark.parametrize("seconds", [0, -1, 1e9])
def test_a_timeout_that_is_no_time_is_refused(client: TestClient, seconds: float):
    assert refused(chat(client, timeout=seconds)) == ("timeout", "invalid_value")


def test_a_timeout_of_another_type_is_refused(client: TestClient):
    assert refused(chat(client, timeout="soon")) == ("timeout", "invalid_type")
