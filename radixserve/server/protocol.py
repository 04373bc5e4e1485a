"""HTTP connections whose heads are bounded, in bytes and in time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from radixserve.server.errors import ApiError

HEAD_LIMIT = 2**16
"""Bytes of a request line and its headers together."""
HEAD_SECONDS = 30.0
"""For a connection that has sent a part of them to send the rest."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol reads a head however long it is, for as long as it takes, and answers what
    is wrong with it at once, be it in the middle of the answer before."""

    head_seconds = HEAD_SECONDS

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self._in_head = False
        self._head_bytes = 0
        """Since the data in which it began, which may hold much else."""
        self._began = False
        self._late: asyncio.TimerHandle | None = None
        self._spoilt = False
        """Whether something came behind a request that nobody can read."""

    def data_received(self, data: bytes) -> None:
        if self._spoilt:
            return
        self._began = False
        super().data_received(data)
        if not self._in_head or self._began:
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_LIMIT:
            self._refuse("The request's head is too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes, self._began = True, 0, True
        self._late = self.loop.call_later(
            self.head_seconds, self._refuse, "The request's head did not come in time."
        )

    def on_headers_complete(self) -> None:
        self._end_of_head()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read. While an answer is under way a refusal would become a part of
        it: then nothing is said, and the connection ends with the last answer that is due."""
        self._end_of_head()
        cycle = self.cycle
        cut = cycle is not None and cycle.more_body  # in the middle of a request's body
        begun = cycle is not None and cycle.response_started
        if cycle is None or cycle.response_complete or (cut and not begun and not self.pipeline):
            self._say(msg)
            return
        if cut and self.pipeline:
            self.pipeline.popleft()
        self._spoilt = True

    def on_response_complete(self) -> None:
        last = not self.pipeline
        super().on_response_complete()
        if self._spoilt and last:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_of_head()
        super().connection_lost(exc)

    def _say(self, message: str) -> None:
        """In the shape that all errors have, since clients read no other."""
        body = ApiError(status=400, message=message, code="invalid_http").body()
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        head += [*self.server_state.default_headers, (b"connection", b"close")]
        lines = [b"%s: %s\r\n" % each for each in head]
        self.transport.write(b"".join([STATUS_LINE[400], *lines, b"\r\n", body]))
        self.transport.close()

    def _refuse(self, message: str) -> None:
        self._end_of_head()
        if not self.transport.is_closing():
            self.send_400_response(message)

    def _end_of_head(self) -> None:
        self._in_head = False
        if self._late is not None:
            self._late.cancel()
            self._late = None
