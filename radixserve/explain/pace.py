"""How fast prompts are computed, as lately measured."""

from __future__ import annotations

DECAY = 0.95
"""What a measurement counts beside the next one."""
ENOUGH = 16
"""Computed tokens without which the time to the first token says nothing of the pace."""


class PrefillPace:
    """Computed prompt tokens by the time from leaving the queue to the first token, others' work
    in it included."""

    __slots__ = ("_seconds", "_tokens")

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def note(self, tokens: int, seconds: float) -> None:
        """A prompt's ``tokens`` were computed in ``seconds``. O(1)."""
        if tokens >= ENOUGH and seconds > 0.0:
            self._tokens = DECAY * self._tokens + tokens
            self._seconds = DECAY * self._seconds + seconds

    def seconds(self, tokens: int) -> float | None:
        """How long so many tokens take; None as long as nothing was measured. O(1)."""
        return tokens * self._seconds / self._tokens if self._tokens else None
