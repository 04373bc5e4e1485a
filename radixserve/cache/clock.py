"""When steps began: what was in use is noted by step, and how long ago that was is asked."""

from __future__ import annotations

from bisect import bisect_right

TICK = 0.1
"""Seconds: no finer."""
TICKS = 16_384
"""Kept at most."""
NOW = 1 << 62
"""Later than any step."""


class StepClock:
    """Seconds of the engine's clock for steps of the cache's own."""

    __slots__ = ("_steps", "_times", "now")

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds that never go back; whoever has the clock sets it."""
        self._times = [0.0]
        self._steps = [0]

    def begin_step(self, step: int) -> None:
        """``step`` begins now. O(1) amortized."""
        if self.now - self._times[-1] >= TICK:
            self._times.append(self.now)
            self._steps.append(step)
            if len(self._times) > TICKS:
                del self._times[: TICKS // 2], self._steps[: TICKS // 2]

    def age(self, step: int) -> float:
        """Seconds since ``step``. O(log ticks)."""
        place = max(0, bisect_right(self._steps, step) - 1)
        return self.now - self._times[place]

    def last_before(self, seconds: float) -> int:
        """The last step that began ``seconds`` ago or earlier, or ``NOW``. O(log ticks)."""
        place = bisect_right(self._times, self.now - seconds)
        return self._steps[place] - 1 if place < len(self._steps) else NOW
