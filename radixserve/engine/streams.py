"""The answers under way: from news of an engine that is somewhere else to streams of text."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from radixserve.engine.answer import Answer
from radixserve.engine.frontend import TextDelta, TextRequest
from radixserve.engine.messages import (
    Abort,
    Add,
    Command,
    GenerationDelta,
    Refusal,
    StepNews,
)
from radixserve.errors import EngineDeadError, OverloadedError
from radixserve.text.tokenizer import Tokenizer

Inbox = asyncio.Queue[GenerationDelta | Exception]


class Streams:
    """Belongs to one event loop.

    Args:
        tokenizer: turns tokens to text.
        most: answers that may be under way at once; the engine's queue would refuse more, but only
            when its step has ended.
        send: gives a command to the engine, without waiting; raises EngineDeadError or
            OverloadedError if there is none that could take it.
    """

    def __init__(self, tokenizer: Tokenizer, most: int, send: Callable[[Command], None]):
        self._tokenizer = tokenizer
        self._most = most
        self._send = send
        self._inboxes: dict[str, Inbox] = {}

    def __len__(self) -> int:
        """Answers under way."""
        return len(self._inboxes)

    async def generate(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        """See ``Frontend.generate``."""
        answers = {
            answer.id: answer
            for answer in (Answer(index, request, self._tokenizer) for index in range(request.n))
        }
        if len(self._inboxes) + request.n > self._most:
            raise OverloadedError(f"{len(self._inboxes)} answers are under way; try again later.")
        inbox: Inbox = asyncio.Queue()
        for identity in answers:
            self._inboxes[identity] = inbox
        try:
            self._send(Add([answer.sequence() for answer in answers.values()]))
            while answers:
                news = await inbox.get()
                if isinstance(news, Exception):
                    raise news
                answer = answers.get(news.id)
                if answer is None:
                    continue
                delta = answer.take(news)
                if answer.finished:
                    self._forget(news.id, running=news.finish is None)
                    del answers[news.id]
                yield delta
        finally:
            for identity in answers:
                self._forget(identity, running=True)

    def take(self, news: StepNews | Refusal) -> None:
        """Hand news of the engine to those whom they concern."""
        if isinstance(news, Refusal):
            if (inbox := self._inboxes.get(news.id)) is not None:
                inbox.put_nowait(news.fault.error())
            return
        for delta in news.deltas:
            if (inbox := self._inboxes.get(delta.id)) is not None:
                inbox.put_nowait(delta)

    def fail(self, error: Exception) -> None:
        """End all that is under way with ``error``."""
        inboxes, self._inboxes = self._inboxes, {}
        for inbox in set(inboxes.values()):
            inbox.put_nowait(error)

    def _forget(self, identity: str, *, running: bool) -> None:
        known = self._inboxes.pop(identity, None) is not None
        if running and known:
            with contextlib.suppress(EngineDeadError, OverloadedError):
                self._send(Abort(identity))
