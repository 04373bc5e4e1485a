"""The pages, as far as they are files."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from radixserve.server.page import WEB
from tests.server.asking import error_of

PAGES = {"/": "index.html", "/cache": "cache.html"}


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_there_and_lets_nothing_in_from_outside(client: TestClient, path: str):
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "http:" not in answer.text
    assert "https:" not in answer.text


def test_all_that_the_pages_load_is_there(client: TestClient):
    text = "".join(client.get(path).text for path in PAGES)
    found = re.findall(r'(?:src|href)="(web/[^"]+)"', text)
    assert {path.split("/")[1] for path in found} | set(PAGES.values()) == {
        path.name for path in WEB.iterdir()
    }
    for path in found:
        assert client.get(f"/{path}").status_code == 200


@pytest.mark.parametrize("path", ["/web/", "/web/nothing", "/web/../app.py", "/web/%2e%2e/app.py"])
def test_nothing_else_is_given_away(client: TestClient, path: str):
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("path", ["/web/style.css", "/web/cache", "/web/nothing"])
def test_a_file_takes_no_other_method_and_says_which(client: TestClient, path: str):
    answer = client.post(path)
    assert answer.headers["allow"] == "GET, HEAD"
    assert error_of(answer, 405)["message"] == "This URL takes GET, HEAD, not POST."


def test_the_cache_tells_what_it_is_and_what_it_was_good_for(client: TestClient):
    stats = client.get("/v1/cache/stats").json()
    assert stats["prefix_cache"] is True
    assert stats["pages"] == {"total": 100, "free": 50, "cached": 25, "in_use": 25, "evicted": 5}
    assert stats["tokens"] == {"prompt": 1000, "cached": 800, "computed": 200, "generated": 90}
    assert stats["reuse"] == 0.8
    assert stats["requests"] == {"running": 1, "waiting": 0, "preemptions": 2}
