"""A GPU of which only the memory is there."""

from __future__ import annotations

GIB = 1 << 30


class FakeMemory:
    """A GPU of 100 GiB; tests move what is held."""

    name = "a GPU"

    def __init__(self, outside: int = GIB):
        self.outside, self.held, self._peak = outside, 0, 0
        self.trimmed = 0

    def take(self, size: int) -> None:
        self.held += size
        self._peak = max(self._peak, self.held)

    def whole(self) -> tuple[int, int]:
        return 100 * GIB - self.outside - self.held, 100 * GIB

    def reserved(self) -> int:
        return self.held

    def peak(self) -> int:
        return self._peak

    def trim(self) -> None:
        self._peak = self.held
        self.trimmed += 1
