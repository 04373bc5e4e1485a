"""A server whose cache, reports and times are whatever a test wants. A token is a word."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.server.sockets import serving

FLOOR = 0.05
PER_TOKEN = 0.001


@contextlib.contextmanager
def hosting(app: Starlette) -> Iterator[str]:
    """The URL of ``app`` while it is served."""
    with serving(app) as server:
        yield server.url


class HandClock:
    """Stands still until somebody moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def sse(data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def chunk(text: str | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    if text is not None:
        delta["content"] = text
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}


class Stub:
    """OpenAI's chat completions over a prefix cache that can be told how to behave.

    Args:
        block: Tokens of a block; None is no cache at all.
        report: Whether usage says how much was reused.
        saves: Whether what is reused costs no time.
        invents: Whether usage says that everything was reused, whatever was.
        floor, per_token: Seconds to the first token, and more for each computed token.
        pace: What each request's time is multiplied by, in turn.
        refuses: Fields that are answered with 400.
        key: The key that requests must carry.
    """

    def __init__(
        self,
        clock: HandClock,
        *,
        block: int | None = 1,
        report: bool = True,
        saves: bool = True,
        invents: bool = False,
        floor: float = FLOOR,
        per_token: float = PER_TOKEN,
        pace: Iterable[float] = (1.0,),
        refuses: Iterable[str] = (),
        key: str | None = None,
        models: list[str] | None = None,
    ):
        self.clock = clock
        self.block = block
        self.report = report
        self.saves = saves
        self.invents = invents
        self.floor = floor
        self.per_token = per_token
        self.pace = itertools.cycle(pace)
        self.refuses = tuple(refuses)
        self.key = key
        self.models = ["stub"] if models is None else models
        self.bodies: list[dict[str, Any]] = []
        self.seen: list[list[str]] = []
        self.app = Starlette(
            routes=[
                Route("/v1/models", self.list_models),
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
            ]
        )

    async def list_models(self, request: Request) -> Response:
        if (refusal := self.refusal(request)) is not None:
            return refusal
        return JSONResponse({"object": "list", "data": [{"id": name} for name in self.models]})

    async def complete(self, request: Request) -> Response:
        if (refusal := self.refusal(request)) is not None:
            return refusal
        body = await request.json()
        self.bodies.append(body)
        for name in self.refuses:
            if name in body:
                hint = ", use max_completion_tokens" if name == "max_tokens" else ""
                message = f"Unrecognized request argument: {name}{hint}"
                return JSONResponse({"error": {"message": message}}, 400)
        return StreamingResponse(self.answer(body), media_type="text/event-stream")

    def refusal(self, request: Request) -> Response | None:
        if self.key is None or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return JSONResponse({"error": {"message": "Wrong key\n\x1b[31m!"}}, 401)

    async def answer(self, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        words = ["<chat>", *" ".join(each["content"] for each in body["messages"]).split()]
        cached = self.match(words)
        self.seen.append(words)
        computed = len(words) - (cached if self.saves else 0)
        # The role comes before anything is computed, as some servers have it.
        yield sse(chunk("", role="assistant"))
        self.clock.now += next(self.pace) * (self.floor + self.per_token * computed)
        yield b": keep-alive\n\n"
        yield sse(chunk("Hel"))
        yield sse(chunk("lo"))
        yield sse(chunk(finish="stop"))
        if "stream_options" in body:
            usage: dict[str, Any] = {"prompt_tokens": len(words), "completion_tokens": 2}
            if self.report:
                reported = len(words) - 1 if self.invents else cached
                usage["prompt_tokens_details"] = {"cached_tokens": reported}
            yield sse({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    def match(self, words: list[str]) -> int:
        if self.block is None:
            return 0
        longest = 0
        for other in self.seen:
            pairs = zip(words[:-1], other, strict=False)
            common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            longest = max(longest, common)
        return longest // self.block * self.block
