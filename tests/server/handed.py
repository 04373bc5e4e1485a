"""Requests that are handed to an app itself, without a client that remembers or connects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping, Sequence
from typing import Any

from starlette.applications import Starlette

Message = MutableMapping[str, Any]
Headers = Sequence[tuple[bytes, bytes]]
JSON = (b"content-type", b"application/json")


def scope(path: str, headers: Headers = (JSON,), *, method: str = "POST") -> dict[str, Any]:
    """What ASGI says of a request to ``path``."""
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": list(headers),
    }


async def hand(
    app: Starlette,
    path: str,
    fields: dict[str, Any],
    *,
    method: str = "POST",
    headers: Headers = (),
    gone: asyncio.Event | None = None,
    sent: list[Message] | None = None,
) -> list[Message]:
    """What is sent in answer, which is put into ``sent`` as it comes; the client hangs up as soon
    as ``gone`` is set."""
    answer: list[Message] = [] if sent is None else sent
    leaving = asyncio.Event() if gone is None else gone
    body = [{"type": "http.request", "body": json.dumps(fields).encode(), "more_body": False}]

    async def receive() -> Message:
        if body:
            return body.pop()
        await leaving.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        answer.append(message)

    await app(scope(path, (JSON, *headers), method=method), receive, send)
    return answer
