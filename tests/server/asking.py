"""Short ways to ask."""

from __future__ import annotations

import json
from typing import Any

from httpx2 import Response
from starlette.testclient import TestClient

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

BREAK = {"prompt_cache_breakpoint": {"mode": "explicit"}}

USER = [{"role": "user", "content": "Hi"}]
HANG = 60.0
"""Seconds; what takes longer is taken for a hang."""


def chat(client: TestClient, headers: dict[str, str] | None = None, **fields: Any) -> Response:
    body = {"messages": USER, **fields}
    return client.post(CHAT, json=body, headers=headers)


def complete(client: TestClient, prompt: Any = "Hi", **fields: Any) -> Response:
    return client.post(COMPLETIONS, json={"prompt": prompt, **fields})


def send(client: TestClient, body: bytes | str, path: str = CHAT) -> Response:
    return client.post(path, content=body, headers={"content-type": "application/json"})


def error_of(response: Response, status: int = 400) -> dict[str, Any]:
    """The error object, which has exactly OpenAI's four fields."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])


def refused(response: Response) -> tuple[str | None, str | None]:
    """The param and the code of a 400."""
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    return error["param"], error["code"]


def events(response: Response) -> list[Any]:
    """The data of a stream's events, after checking that it ends as it must."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    data = [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]
    assert data.pop() == "[DONE]"
    return [json.loads(each) for each in data]


def accumulated(response: Response) -> dict[str, Any]:
    """The one choice of a stream in the form of a whole answer; checks how calls are told."""
    message: dict[str, Any] = {"role": "", "content": None, "refusal": None}
    reason = None
    for chunk in events(response):
        [choice] = chunk["choices"]
        delta = choice["delta"]
        for name in ("role", "content", "reasoning", "reasoning_content"):
            if name in delta and (delta[name] or name == "role"):
                message[name] = (message.get(name) or "") + delta[name]
        for piece in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            function = piece["function"]
            if piece["index"] == len(calls):
                assert set(piece) == {"index", "id", "type", "function"}
                assert function["arguments"] == ""
                calls.append({"id": piece["id"], "type": piece["type"], "function": function})
            else:
                assert piece["index"] == len(calls) - 1
                assert set(piece) == {"index", "function"}
                assert set(function) == {"arguments"}
                calls[-1]["function"]["arguments"] += function["arguments"]
        assert reason is None
        reason = choice["finish_reason"]
    if message["content"] is None and "tool_calls" not in message:
        message["content"] = ""
    return {"message": message, "finish_reason": reason}


def part(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}
