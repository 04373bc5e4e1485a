"""How long a device waited while it had work to do, from the times of its kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Span = tuple[float, float]
"""When a kernel began and when it ended, in seconds."""

PASSING = 5e-6
"""Seconds that a device takes at most from one kernel to the next one that is queued already. What
is longer it waited for the host."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Shares of the time from the first kernel's begin to the last one's end."""

    waiting: float
    """Without a kernel for longer than ``PASSING`` at a time: between steps, or for launches."""
    passing: float
    """Without a kernel for a shorter time."""
    seconds: float
    kernels: int


def idle(spans: Iterable[Span]) -> Idle:
    """What kernels leave of their time; those that overlap count once. O(n log n).

    Raises:
        ValueError: there are no kernels.
    """
    ordered = sorted(spans)
    if not ordered:
        raise ValueError("no kernel was seen: the profiler cannot look at this device")
    waiting = passing = 0.0
    first, reached = ordered[0]
    for begin, end in ordered:
        gap = begin - reached
        if gap > PASSING:
            waiting += gap
        elif gap > 0:
            passing += gap
        reached = max(reached, end)
    whole = reached - first
    return Idle(waiting / whole, passing / whole, whole, len(ordered))
