"""How fast steps compute, as lately measured."""

from __future__ import annotations

from collections import deque

STEPS = 64
"""Steps that count, the latest ones."""
ENOUGH = 8
"""Steps without which nothing is said."""
FULL = 0.25
"""The share of a step's budget that makes it count: who only decodes says nothing of prefill."""


class Pace:
    """The best rate among the latest well filled steps: no promise, but what to hope for.

    Args:
        budget: tokens that a step computes at most.
    """

    __slots__ = ("_least", "_rates")

    def __init__(self, budget: int):
        self._least = FULL * budget
        self._rates: deque[float] = deque(maxlen=STEPS)

    def note(self, tokens: int, seconds: float) -> None:
        """A step computed ``tokens`` in ``seconds``. O(1)."""
        if tokens >= self._least and seconds > 0:
            self._rates.append(tokens / seconds)

    @property
    def rate(self) -> float | None:
        """Tokens a second; None while too little was seen. O(1)."""
        return max(self._rates) if len(self._rates) >= ENOUGH else None
