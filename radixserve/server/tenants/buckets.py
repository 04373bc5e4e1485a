"""Token buckets: so much a minute, a minute's worth at once."""

from __future__ import annotations

from dataclasses import dataclass

MINUTE = 60.0
ROUNDING = 1e-6


@dataclass(slots=True)
class Bucket:
    """Fills evenly, and is full after a minute. Times are in seconds of one clock.

    Whoever needs more than it holds when full gets it once it is full; what is charged in the end
    may leave it in debt, which later ones wait for.
    """

    per_minute: float
    level: float
    updated: float

    @classmethod
    def full(cls, per_minute: float, now: float) -> Bucket:
        return cls(per_minute, per_minute, now)

    def resize(self, per_minute: float, now: float) -> None:
        """From now on it fills as fast as that; what was used stays used."""
        self._fill(now)
        self.per_minute, self.level = per_minute, min(self.level, per_minute)

    def take(self, amount: float, now: float) -> float:
        """Take ``amount``; returns what was taken, a full bucket at most, or nothing: 0."""
        self._fill(now)
        amount = min(amount, self.per_minute)
        if amount > self.level + ROUNDING:
            return 0.0
        self.level -= amount
        return amount

    def give(self, amount: float, now: float) -> None:
        """Give back what was not used; a negative amount is charged, whatever is there."""
        self._fill(now)
        self.level = min(self.level + amount, self.per_minute)

    def wait(self, amount: float, now: float) -> float:
        """Seconds until ``take`` could succeed, if nobody else took."""
        self._fill(now)
        missing = min(amount, self.per_minute) - self.level
        return max(0.0, missing) * MINUTE / self.per_minute

    def remaining(self, now: float) -> int:
        self._fill(now)
        return max(0, int(self.level + ROUNDING))

    def _fill(self, now: float) -> None:
        passed = max(0.0, now - self.updated)
        self.level = min(self.per_minute, self.level + passed * self.per_minute / MINUTE)
        self.updated = max(now, self.updated)
