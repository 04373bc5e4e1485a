"""Short ways to ask Anthropic's API, and to read what it says."""

from __future__ import annotations

import json
from typing import Any

from httpx2 import Response
from starlette.testclient import TestClient

from tests.server.fake import FakeFrontend
from tests.text.parsing.samples import TOOLS as FUNCTIONS

TOOLS = [
    {"name": each["function"]["name"], "input_schema": each["function"]["parameters"]}
    for each in FUNCTIONS
]

USER = [{"role": "user", "content": "Hi"}]
PATH = "/v1/messages"
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def message(client: TestClient, headers: dict[str, str] | None = None, **fields: Any) -> Response:
    return client.post(PATH, json={"max_tokens": 100, "messages": USER, **fields}, headers=headers)


def counted(client: TestClient, **fields: Any) -> int:
    response = client.post(f"{PATH}/count_tokens", json={"messages": USER, **fields})
    assert response.status_code == 200, response.text
    assert set(response.json()) == {"input_tokens"}
    return int(response.json()["input_tokens"])


def error_of(response: Response, status: int = 400) -> dict[str, Any]:
    """The error, which has Anthropic's shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    return checked_error(response.json(), response, status)


def checked_error(body: dict[str, Any], response: Response, status: int) -> dict[str, Any]:
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    error = dict(body["error"])
    assert set(error) <= {"type", "message", "details"}
    assert error["type"] == ERROR_TYPES[status]
    return error


def refused(response: Response) -> tuple[str | None, str | None]:
    """The param and the code of a 400."""
    details = error_of(response)["details"]
    return details.get("param"), details.get("error_code")


def ignored(response: Response) -> set[str]:
    assert response.status_code == 200, response.text
    return set(filter(None, response.headers.get("x-radixserve-ignored", "").split(", ")))


def events(response: Response) -> list[dict[str, Any]]:
    """The data of a stream's events, each of which is named by its type."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return [each for each in found if each["type"] != "ping"]


def accumulated(response: Response) -> dict[str, Any]:
    """The message that a stream tells; checks the order of its events and the places of blocks."""
    start, *middle, last, end = events(response)
    assert start["type"] == "message_start"
    assert (last["type"], end) == ("message_delta", {"type": "message_stop"})
    told = start["message"]
    assert (told["content"], told["stop_reason"]) == ([], None)
    pieces: list[str] = []
    running = False
    for news in middle:
        if news["type"] == "content_block_start":
            assert not running
            assert news["index"] == len(told["content"])
            told["content"].append(news["content_block"])
            pieces, running = [], True
            continue
        assert running
        assert news["index"] == len(told["content"]) - 1
        block = told["content"][-1]
        if news["type"] == "content_block_stop":
            running = False
            if block["type"] == "tool_use":
                block["input"] = json.loads("".join(pieces) or "{}")
            continue
        assert news["type"] == "content_block_delta"
        delta = news["delta"]
        match block["type"], delta.pop("type"):
            case "text", "text_delta":
                block["text"] += delta["text"]
            case "thinking", "thinking_delta":
                assert not block["signature"]
                block["thinking"] += delta["thinking"]
            case "thinking", "signature_delta":
                block["signature"] = delta["signature"]
            case "tool_use", "input_json_delta":
                pieces.append(delta["partial_json"])
            case other:
                raise AssertionError(other)
    assert not running
    return {**told, **last["delta"], "usage": last["usage"]}


def told(response: Response) -> dict[str, Any]:
    """The message of an answer, streamed or whole, with what differs from call to call left out."""
    streamed = response.headers["content-type"].startswith("text/event-stream")
    assert response.status_code == 200, response.text
    found = accumulated(response) if streamed else dict(response.json())
    assert found.pop("id").startswith("msg_")
    assert (found.pop("type"), found.pop("role")) == ("message", "assistant")
    return found


def prompt_tokens(usage: dict[str, Any]) -> int:
    """Tokens of the prompt, as clients add them up."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(usage[name] for name in names)


def prompt_of(frontend: FakeFrontend) -> str:
    """The last prompt that came."""
    return bytes(frontend.requests[-1].prompt[3::4]).decode()
