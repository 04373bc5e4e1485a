"""``best_of``: of all answers to a prompt those that the model holds to be the likeliest."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from msgspec import UNSET, UnsetType

from radixserve.server.answer import Shape
from radixserve.server.errors import wrong
from radixserve.server.parameters import MAX_N
from radixserve.server.service import Deltas
from radixserve.server.wire import CompletionChoice, CompletionRequest, PromptLogprobs


def answers_of(fields: CompletionRequest) -> tuple[str, int]:
    """How many answers are generated for each prompt, and the field that says so. In a beam search
    it is the width, and no more than ``n`` are told.

    Raises:
        ApiError: 400, of so many there cannot be the best.
    """
    n = 1 if fields.n is None else fields.n
    if fields.best_of is None or fields.best_of == n or fields.use_beam_search:
        return "n", n
    if not n <= fields.best_of <= MAX_N:
        raise wrong("best_of", f"must be between n ({n}) and {MAX_N}")
    if fields.stream:
        raise wrong(
            "best_of", "cannot be streamed: which answers are the best is known at their end"
        )
    return "best_of", fields.best_of


class BestOf:
    """The ``n`` answers of ``of`` to each prompt with the highest mean logprob of a token, the best
    first; one without a token comes last. A stop token that is not shown does not count.

    Args:
        shape: Gives all answers their form.
        logprobs: Whether the client wants them, too.
    """

    prompt_logprobs: PromptLogprobs | UnsetType = UNSET

    def __init__(self, shape: Shape, *, n: int, of: int, logprobs: bool):
        self._shape = shape
        self._n, self._of = n, of
        self._logprobs = logprobs
        self._scores: defaultdict[int, list[float]] = defaultdict(list)

    async def whole(self, deltas: Deltas) -> list[CompletionChoice]:
        choices = await self._shape.whole(self._noted(deltas))
        kept = []
        for first in range(0, len(choices), self._of):
            mine = choices[first : first + self._of]
            best = sorted(mine, key=self._mean, reverse=True)[: self._n]
            # The prompt's stay with the first choice, whichever that is.
            mine[0].prompt_logprobs, best[0].prompt_logprobs = UNSET, mine[0].prompt_logprobs
            kept += best
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
