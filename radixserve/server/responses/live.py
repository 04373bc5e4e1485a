"""A response that is being streamed, and can be ended by somebody who does not read the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from radixserve.engine.frontend import TextDelta
from radixserve.server.errors import ApiError
from radixserve.server.responses.reading import Question
from radixserve.server.responses.store import Responses
from radixserve.server.responses.turn import Turn
from radixserve.server.responses.wire import Item
from radixserve.server.service import Deltas, cancelled


class Live:
    """``turn`` as the news in ``deltas`` makes it grow, and as ``store`` knows of it.

    Args:
        question: What it answers.
        namespace: Of its prompt, within the tenant's.
    """

    def __init__(
        self,
        turn: Turn,
        question: Question,
        namespace: bytes,
        deltas: Deltas,
        store: Responses,
        tenant: str,
    ):
        self.turn = turn
        self.items = question.items
        self.namespace = namespace
        self.wanted = turn.response.store
        """Whether it is stored at its end."""
        self._deltas = deltas
        self._store = store
        self._tenant = tenant
        self._reworded = question.reworded
        self._news: asyncio.Queue[TextDelta | Exception | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events after those of the beginning. Closing it cancels the response.

        Raises:
            ApiError, AnswerError, RadixServeError: what ``Service.answers`` raises.
        """
        turn = self.turn
        self._store.begin(self._tenant, self)
        self._reading = asyncio.create_task(self._read())
        try:
            while (news := await self._news.get()) is not None and turn.running:
                if isinstance(news, Exception):
                    raise self._reworded(news)
                if told := turn.take(news):
                    yield told
            turn.end("cancelled")
            yield turn.ended()
        except (GeneratorExit, asyncio.CancelledError):
            turn.end("cancelled")
            raise
        finally:
            self._store.finish(self._tenant, self)
            await cancelled(self._reading)

    def shown(self) -> bytes:
        """The response as JSON, as far as it has come."""
        return self.turn.shown()

    def asked(self) -> list[Item]:
        """The items of its input."""
        return self.items

    def cancel(self) -> None:
        """End it with what there is, and give back what it holds."""
        self.turn.end("cancelled")
        self._store.finish(self._tenant, self)
        if self._reading is not None:
            self._reading.cancel()

    async def stopped(self) -> None:
        """Wait until the engine has been told of its end."""
        if self._reading is not None:
            await asyncio.wait({self._reading})

    def failure(self, error: ApiError) -> bytes:
        """It has failed; returns the events that say so."""
        self.turn.end("failed", error)
        self._store.finish(self._tenant, self)
        return self.turn.ended()

    async def _read(self) -> None:
        last: Exception | None = None
        try:
            async with aclosing(self._deltas) as deltas:
                async for _, news in deltas:
                    self._news.put_nowait(news)
        except Exception as error:
            last = error
        finally:
            self._news.put_nowait(last)
