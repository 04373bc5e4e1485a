"""A device that runs behind the host as a GPU does, and fails where the host does not wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from radixserve.attention.arrays import PagedBatch
from radixserve.attention.backend import AttentionBackend


class RaceError(AssertionError):
    """The host touched what the device had still to read."""


class FakeEvent:
    def __init__(self, device: FakeDevice):
        self._device, self._place = device, 0

    def record(self) -> None:
        self._place = self._device.given

    def synchronize(self) -> None:
        self._device.run_to(self._place)


class FakeDevice:
    """A ``GraphDevice`` that does nothing before somebody waits for it.

    Its one stream is a queue; a graph is the function that was captured, called again.
    """

    def __init__(self) -> None:
        self._queue: list[tuple[int, Callable[[], None]]] = []
        self.given = 0
        self.done: list[str] = []
        """What happened, in order: ``warm``, ``capture``, ``copy``, ``replay``."""
        self.allocated = 0

    def pinned(self, size: int) -> torch.Tensor:
        self.allocated += 1
        return torch.zeros(size, dtype=torch.int64)

    def memory(self, size: int) -> torch.Tensor:
        self.allocated += 1
        return torch.zeros(size, dtype=torch.int64)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        as_given = source.clone()

        def run() -> None:
            if not torch.equal(source, as_given):
                raise RaceError("pinned memory was overwritten before it was copied")
            target.copy_(source)

        self.enqueue("copy", run)

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def warm(self, run: Callable[[], None]) -> None:
        self.enqueue("warm", run)
        self.finish()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        self.done.append("capture")
        return partial(self.enqueue, "replay", run)

    def enqueue(self, kind: str, run: Callable[[], None]) -> None:
        self.given += 1
        self._queue.append((self.given, lambda: (self.done.append(kind), run())[1]))

    def run_to(self, place: int) -> None:
        while self._queue and self._queue[0][0] <= place:
            self._queue.pop(0)[1]()

    def finish(self) -> None:
        self.run_to(self.given)


class QueuedBackend:
    """A backend whose ``begin`` is done on the stream, out of one staging memory for all buckets.

    ``staging`` counts what is still in that memory.
    """

    def __init__(self, inner: AttentionBackend, device: FakeDevice, staging: list[int]):
        self._inner, self._device, self._staging = inner, device, staging
        self.begun: list[PagedBatch] = []

    def begin(self, batch: PagedBatch) -> None:
        if self._staging:
            raise RaceError("attention was planned while the plan before was still being copied")
        self.begun.append(batch)
        self._staging.append(1)

        def run() -> None:
            self._staging.clear()
            self._inner.begin(batch)

        self._device.enqueue("begin", run)

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        self._inner.append(layer, key, value)

    def run(
        self, layer: int, query: torch.Tensor, *, scale: float, soft_cap: float | None = None
    ) -> torch.Tensor:
        return self._inner.run(layer, query, scale=scale, soft_cap=soft_cap)
