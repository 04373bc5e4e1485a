"""A device that runs behind the host as a GPU does, and fails where the host does not wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from radixserve.attention.arrays import PagedBatch
from radixserve.attention.backend import AttentionBackend
from tests.attention.fake_device import FakeEvent, RaceError, Stream
from tests.attention.fake_graph import Capture


class FakeDevice:
    """A ``GraphDevice`` that does nothing before somebody waits for it.

    Its one stream is a queue; a graph is the function that was captured, called again.
    """

    def __init__(self) -> None:
        self.stream = Stream()
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
        self.stream.copy(source, target)
        self.stream.give(lambda: self.done.append("copy"))

    def event(self) -> FakeEvent:
        return FakeEvent(self.stream)

    def warm(self, run: Callable[[], None]) -> None:
        self.enqueue("warm", run)
        self.finish()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        self.done.append("capture")
        return partial(self.enqueue, "replay", run)

    def enqueue(self, kind: str, run: Callable[[], None]) -> None:
        self.stream.give(lambda: (self.done.append(kind), run())[1])

    def finish(self) -> None:
        self.stream.finish()


class GraphDevice(FakeDevice):
    """One whose graphs hold operations on memory, as those of a GPU do, and no Python."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        self.done.append("capture")
        captured = Capture()
        with captured:
            run()
        return partial(self.enqueue, "replay", captured.replay)


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
