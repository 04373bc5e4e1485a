"""``best_of``: of all answers to a prompt those that the model holds to be the likeliest."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from radixserve.server.answer import Shape
from radixserve.server.parameters import MAX_N
from radixserve.server.service import Deltas
from radixserve.server.wire import CompletionChoice, CompletionRequest, invalid


def answers_of(fields: CompletionRequest) -> tuple[str, int]:
    """How many answers are generated for each prompt, and the field that says so.

    Raises:
        ApiError: 400, of so many there cannot be the best.
    """
    n = 1 if fields.n is None else fields.n
    if fields.best_of is None or fields.best_of == n:
        return "n", n
    if not n <= fields.best_of <= MAX_N:
        raise invalid("best_of", f"best_of must be between n ({n}) and {MAX_N}")
    if fields.stream:
        message = "best_of cannot be streamed: which answers are the best is known at their end"
        raise invalid("best_of", message)
    return "best_of", fields.best_of


class BestOf:
    """The ``n`` answers of ``of`` to each prompt with the highest mean logprob of a token, the best
    first; one without a token comes last.

    Args:
        shape: Gives all answers their form.
        logprobs: Whether the client wants them, too.
    """

    def __init__(self, shape: Shape, *, n: int, of: int, logprobs: bool):
        self._shape = shape
        self._n, self._of = n, of
        self._logprobs = logprobs
        self._scores: defaultdict[int, list[float]] = defaultdict(list)

    async def whole(self, deltas: Deltas) -> list[CompletionChoice]:
        choices = await self._shape.whole(self._noted(deltas))
        kept = []
        for first in range(0, len(choices), self._of):
            ranked = sorted(choices[first : first + self._of], key=self._mean, reverse=True)
            kept += ranked[: self._n]
        for place, choice in enumerate(kept):
            choice.index = place
            if not self._logprobs:
                choice.logprobs = None
        return kept

    def chunks(self, deltas: Deltas) -> AsyncGenerator[list[Any], None]:
        raise NotImplementedError("which answers are the best is known at their end")

    def _mean(self, choice: CompletionChoice) -> float:
        scores = self._scores[choice.index]
        return math.fsum(scores) / len(scores) if scores else -math.inf

    async def _noted(self, deltas: Deltas) -> Deltas:
        async with aclosing(deltas):
            async for prompt, news in deltas:
                scores = self._scores[prompt * self._of + news.index]
                scores += (each.logprob for each in news.logprobs)
                yield prompt, news
