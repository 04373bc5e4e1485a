"""One prompt on its way, as the trail of what was asked sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter

from radixserve.engine.frontend import TextDelta, TextRequest
from radixserve.explain.bodies import size
from radixserve.explain.reason import FEW, Explanation, explain
from radixserve.explain.trail import Record, State
from radixserve.server.explained import Comparison, Explainer, harmless
from radixserve.tokens import pack

LARGE = 2**15
"""Bytes of a body from which reading it would hold up the event loop."""

Work = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs something on a thread."""


class Step:
    """From the moment before a prompt is asked to the end of its answers.

    Args:
        request: A tenant's own.
        body: Where it came from; empty if nobody knows.
        compare: Id of a request that it is to be compared with.
        called: What the server has told its client to call it; empty if nothing.
    """

    def __init__(
        self,
        explainer: Explainer,
        request: TextRequest,
        body: bytes,
        compare: str | None = None,
        *,
        called: str = "",
    ):
        self._explainer = explainer
        self._request = request
        self._compare = compare
        self._began = perf_counter()
        self._waited: float | None = None
        self._tokens: list[int] = []
        """Of the first answer."""
        self._looked = False
        self.comparison: Comparison | None = None
        with explainer.measured():
            self.record = explainer.record(request, called=called)
            trail, namespace = explainer.trail, (request.tenant, request.namespace)
            self._nearest = trail.nearest(*namespace, request.prompt)
            self._wiped = trail.wiped(*namespace, request.prompt)
            trail.add(self.record, body, extends=self._extended())

    def _extended(self) -> Record | None:
        """Whose prompt it begins with, if it leaves in the cache what that one has left."""
        if not self._nearest or self._request.cache != "on":
            return None
        first = self._nearest[0]
        return first.record if first.common >= first.record.length else None

    @property
    def explanation(self) -> Explanation | None:
        """Known from the first news on, unless something went wrong."""
        return self.record.explanation

    def saved_ms(self, tokens: int) -> float | None:
        """What it takes to compute so many; None as long as nothing was measured."""
        return self._explainer.milliseconds(tokens)

    async def take(self, delta: TextDelta, work: Work) -> bool:
        """News of an answer; returns whether they explain the prompt. Large bodies are read by
        ``work``."""
        if delta.index:
            return False
        self._note_pace(delta)
        self._tokens += delta.tokens
        if delta.end is not None:
            self._tokens.append(delta.end)
        if self._looked:
            return False
        self._looked = True

        def look() -> None:
            with self._explainer.measured():
                with harmless():
                    self._look(delta)
                self.record.unexplained = self.explanation is None

        if self._reads and self._large():
            await work(look)
        else:
            look()
        return True

    def end(self, *, refused: bool = False, failed: bool = False) -> None:
        """Nothing more will come. What was ``refused`` has left no trace."""
        trail = self._explainer.trail
        with self._explainer.measured():
            if refused:
                trail.remove(self.record)
                return
            state: State = "failed" if failed else "aborted"
            if self._looked:
                state = "done"  # the prompt was computed, whatever came then
            # Of the last token nothing is computed, and so nothing is cached.
            answer = pack(self._tokens[:-1])
            trail.end(self.record, state, answer)

    @property
    def _reads(self) -> bool:
        """Whether bodies have to be read to explain it."""
        few = bool(self._nearest) and self._nearest[0].common < FEW
        return few or self._compare is not None

    def _large(self) -> bool:
        """Whether any of them would hold up the event loop."""
        records = (self.record, *(each.record for each in self._nearest))
        return any(size(record.body) > LARGE for record in records)

    def _look(self, delta: TextDelta) -> None:
        explainer, record = self._explainer, self.record
        found = explainer.found(record, self._request, delta.usage.cached_tokens, delta.missed)
        alike, like = explainer.like(record, self._nearest, found.cached)
        record.explanation = explain(found, alike, self._wiped, like=like)
        if self._compare is not None:
            self.comparison = explainer.compared(record, self._compare)

    def _note_pace(self, delta: TextDelta) -> None:
        if delta.waited is not None:
            self._waited = delta.waited
        if self._waited is not None and delta.tokens:
            seconds = perf_counter() - self._began - self._waited
            usage = delta.usage
            self._explainer.pace.note(usage.prompt_tokens - usage.cached_tokens, seconds)
            self._waited = None
