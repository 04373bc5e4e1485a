"""Who asks why, and how it is told and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.server.asking import USER, complete, error_of, events
from tests.server.explaining import run
from tests.server.stack import Stack, usage


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("header", [False, True])
def test_usage_says_why_on_request(tmp_path: Path, stream: bool, header: bool):
    async def scenario(server: Stack) -> None:
        fields: dict[str, Any] = {"max_tokens": 1, "prompt": list(range(20, 100))}
        if stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if header:
            server.client.headers["x-radixserve-explain"] = "1"
        else:
            fields["explain"] = True
        cold = usage(await server.ask(**fields))["radixserve"]
        assert cold["reasons"] == {"cold": 80}
        assert cold["time_saved_ms"] == 0.0
        fields["prompt"] = [*range(20, 70), *([9] * 30)]
        warm = usage(await server.ask(**fields))["radixserve"]
        assert warm["reasons"] == {"diverged": 30}
        assert warm["computed_tokens"] == 30
        assert warm["time_saved_ms"] > 0.0

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("fields", "headers", "listed"),
    [
        ({"explain": True}, {}, "explain"),
        ({}, {"x-radixserve-explain": "on"}, "x-radixserve-explain"),
        ({"explain": False}, {"x-radixserve-explain": "no"}, None),
        ({"explain": True, "stream_options": {"include_usage": True}}, {}, None),
    ],
)
def test_a_stream_without_usage_says_that_it_explains_nothing(
    client: TestClient, fields: Any, headers: dict[str, str], listed: str | None
):
    for path, body in (("chat/completions", {"messages": USER}), ("completions", {"prompt": "Hi"})):
        answer = client.post(
            f"/v1/{path}", json={**body, "stream": True, **fields}, headers=headers
        )
        assert answer.headers.get("x-radixserve-ignored") == listed
        id = events(answer)[0]["id"]
        assert client.get(f"/v1/cache/requests/{id}").json()["prompt_tokens"] > 0


@pytest.mark.parametrize("name", ["x-radixserve-explain", "x-dynamo-session-final"])
def test_headers_that_say_neither_yes_nor_no_are_refused(client: TestClient, name: str):
    for word in ("maybe", "2", "tru"):
        error = error_of(
            client.post("/v1/completions", json={"prompt": "Hi"}, headers={name: word})
        )
        assert (error["param"], error["code"]) == (name, "invalid_value")
        assert "1, true, yes, on, 0, false, no, off" in error["message"]
    for word in ("TRUE", "1", "off", "false", ""):
        headers = {name: word, "x-session-id": "s"}
        answer = client.post("/v1/completions", json={"prompt": "Hi"}, headers=headers)
        assert answer.status_code == 200


def test_nobody_is_told_of_what_is_unknown(client: TestClient):
    for id in ("nothing", "x" * 5000, "%00"):
        error = error_of(client.get(f"/v1/cache/requests/{id}"), 404)
        assert error["code"] == "request_not_found"
        assert len(error["message"]) < 300


def test_reasons_are_counted(client: TestClient):
    complete(client, "x" * 100)
    complete(client, "x" * 100)
    complete(client, "x" * 60 + "y" * 40)
    shown = client.get("/metrics").text
    assert 'prompt_tokens_computed_total{model_name="fake/model",reason="cold"} 100.0' in shown
    assert 'reason="diverged"} 40.0' in shown
    assert "radixserve:explaining_seconds{" in shown
