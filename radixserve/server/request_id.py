"""An id for every request, on every answer, and one line for it in the access log."""

from __future__ import annotations

import logging
import re
import uuid
from time import perf_counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixserve.server.messages import errors as anthropic
from radixserve.server.tally import CLIENT_GONE, Tally

log = logging.getLogger("radixserve.access")

HEADER = "x-request-id"
ANTHROPIC_HEADER = "request-id"
SANE = re.compile(r"[\x20-\x7e]{1,128}")
LONGEST_PATH = 100


class RequestId:
    """Echoes the client's id if it is short and printable, else makes one.

    The id is for people and logs only: what the engine calls a request is always our own, so two
    requests with one id don't meet. The log has no prompt, no answer, no salt and no query.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(HEADER, "").strip()
        chosen = SANE.fullmatch(sent) is not None
        identity = sent if chosen else f"req-{uuid.uuid4().hex}"
        tally = Tally()
        # One that a client has chosen may be guessed: nothing is told of it.
        told_by = "" if chosen else identity
        scope.setdefault("state", {}).update(tally=tally, request_id=identity, told_by=told_by)
        status = CLIENT_GONE
        started = perf_counter()

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[HEADER] = identity
                if anthropic.is_meant(scope):
                    headers[ANTHROPIC_HEADER] = identity
            elif not message.get("more_body", False):
                tally.status = status
            await send(message)

        try:
            await self.app(scope, receive, marked)
        finally:
            usage = tally.usage()
            # Whoever polls /health and /metrics would fill the log.
            quiet = scope["method"] == "GET" and tally.status < 400
            log.log(
                logging.DEBUG if quiet else logging.INFO,
                "%s %s %s prompt=%d cached=%d completion=%d %.3fs id=%s",
                scope["method"],
                scope["path"][:LONGEST_PATH].encode("unicode_escape").decode(),
                tally.status,
                usage.prompt_tokens,
                usage.prompt_tokens_details.cached_tokens,
                usage.completion_tokens,
                perf_counter() - started,
                identity,
            )
