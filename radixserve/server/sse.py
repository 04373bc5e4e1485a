"""Server-sent events: headers before the first token, comments while nothing comes, a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixserve.server.errors import ApiError, going_down, to_api_error
from radixserve.server.service import Settings, cancelled, until_gone

log = logging.getLogger(__name__)

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Proxies such as nginx would collect the stream before they pass it on.
    "x-accel-buffering": "no",
}
LAST_WORD = 1.0
"""Seconds that a client has to read that the server goes down; one may have stopped reading."""

_encoder = msgspec.json.Encoder()


def event(data: object, name: str = "") -> bytes:
    """One event with ``data`` as JSON, of a type of its own if it has a ``name``."""
    named = f"event: {name}\n".encode() if name else b""
    return named + b"data: " + _encoder.encode(data) + b"\n\n"


def _failure(error: ApiError) -> bytes:
    return b"data: " + error.body() + b"\n\n"


@dataclass(frozen=True, slots=True)
class Framing:
    """What one API's streams say beside their answers; by default OpenAI's completions."""

    opening: bytes = b""
    """Said as soon as it is certain that there will be a stream, be there news or not."""
    keep_alive: bytes = b": keep-alive\n\n"
    """Said after a silence."""
    failure: Callable[[ApiError], bytes] = _failure
    end: bytes = b"data: [DONE]\n\n"


class EventStream(Response):
    """Sends ``events``, then what ``framing`` ends with.

    An error within ``settings.grace`` of the start, before anything was sent, is raised, so that it
    becomes an answer with its own status. A later one becomes an event of its own.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        settings: Settings,
        headers: Mapping[str, str],
        framing: Framing | None = None,
    ):
        self._events = events
        self._framing = framing or Framing()
        self._settings = settings
        self.status_code = 200
        self.background = None
        self.init_headers({**HEADERS, **headers})
        self._sending = asyncio.Lock()
        self._started = False
        self._ended = False
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(receive, self._run(send))
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            # The server goes down and has waited long enough; nobody else cancels a request.
            if not self._ended:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORD):
                        await self._fail(send, going_down())

    async def _run(self, send: Send) -> None:
        heartbeat = asyncio.create_task(self._beat(send))
        failed: Exception | None = None
        try:
            async with aclosing(self._events) as events:
                async for data in events:
                    await self._write(send, data)
        except Exception as error:
            failed = error
        finally:
            await cancelled(heartbeat)
        if failed is None:
            await self._end(send)
        elif self._started:
            await self._fail(send, failed)
        else:
            raise failed

    async def _fail(self, send: Send, error: Exception) -> None:
        failed = to_api_error(error)
        if failed.code == "internal_error":
            log.error("a stream failed", exc_info=error)
        await self._write(send, self._framing.failure(failed))
        await self._end(send)

    async def _end(self, send: Send) -> None:
        await self._write(send, self._framing.end)
        self._ended = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _beat(self, send: Send) -> None:
        await asyncio.sleep(self._settings.grace)
        await self._write(send, b"")
        interval = self._settings.keep_alive
        now = asyncio.get_running_loop().time
        while True:
            silent = now() - self._last_sent
            if silent >= interval:
                await self._write(send, self._framing.keep_alive)
            else:
                await asyncio.sleep(interval - silent)

    async def _write(self, send: Send, data: bytes) -> None:
        async with self._sending:
            if not self._started:
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
                self._started = True
                data = self._framing.opening + data
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._last_sent = asyncio.get_running_loop().time()
