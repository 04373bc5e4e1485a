"""An id for every request, on every answer, and one line for it in the access log."""

from __future__ import annotations

import logging
import re
import uuid
from time import perf_counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixserve.server.tally import Tally

log = logging.getLogger("radixserve.access")

HEADER = "x-request-id"
SANE = re.compile(r"[\x20-\x7e]{1,128}")
CLIENT_GONE = 499
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
        identity = sent if SANE.fullmatch(sent) else f"req-{uuid.uuid4().hex}"
        tally = scope.setdefault("state", {})["tally"] = Tally()
        status, complete = CLIENT_GONE, False
        started = perf_counter()

        async def marked(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = identity
            elif not message.get("more_body", False):
                complete = True
            await send(message)

        try:
            await self.app(scope, receive, marked)
        finally:
            usage = tally.usage()
            shown = status if complete else CLIENT_GONE
            # Whoever polls /health and /metrics would fill the log.
            quiet = scope["method"] == "GET" and shown < 400
            log.log(
                logging.DEBUG if quiet else logging.INFO,
                "%s %s %s prompt=%d cached=%d completion=%d %.3fs id=%s",
                scope["method"],
                scope["path"][:LONGEST_PATH].encode("unicode_escape").decode(),
                shown,
                usage.prompt_tokens,
                usage.prompt_tokens_details.cached_tokens,
                usage.completion_tokens,
                perf_counter() - started,
                identity,
            )
