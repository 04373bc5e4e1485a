"""An answer as it comes, from a server or from an engine in this process, and what it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

Clock = Callable[[], float]
"""Seconds since some moment; only differences mean something."""
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The tokens of one answer, as they were reported."""

    prompt: int
    completion: int
    cached: int | None
    """Prompt tokens that were not computed; None if the server does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """News of an answer."""

    text: str = ""
    thought: str = ""
    """Reasoning, where the server tells it apart."""
    finish: str | None = None
    counts: TokenCounts | None = None


Pieces = Generator[Piece, None, None]
"""Closing it stops the answer."""


class Measured:
    """One answer and its times, in seconds; begins to count when it is made."""

    def __init__(self, clock: Clock = time.perf_counter):
        self.text = ""
        self.finish: str | None = None
        self.counts: TokenCounts | None = None
        self.first: float | None = None
        """From the request to the first token; None until there is one."""
        self._clock = clock
        self._start = clock()
        self._last = 0.0

    def take(self, piece: Piece) -> None:
        self.text += piece.text
        self.counts = piece.counts or self.counts
        self.finish = piece.finish or self.finish
        if piece.text or piece.thought or piece.finish:
            self._last = self._clock() - self._start
            if self.first is None:
                self.first = self._last

    @property
    def tokens_per_second(self) -> float | None:
        """Of the tokens behind the first; None if there are none, or nobody counted them."""
        if self.first is None or self.counts is None or self._last <= self.first:
            return None
        return (self.counts.completion - 1) / (self._last - self.first) or None
