"""A stand-in for a GPU that does what it is asked for as late as it may.

Whoever writes to memory that a queued copy still has to read gets a ``RaceError``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from tests.attention.fake_graph import Capture


class RaceError(AssertionError):
    """Memory was written while a copy that is queued still had to read it."""


@dataclass
class _Work:
    run: Callable[[], None]
    source: torch.Tensor | None = None
    """What it reads of the host's memory."""
    fills: bool = False
    """Whether kernels read what it writes."""


class Stream:
    """What the device has to do, in order; it does it when someone waits."""

    def __init__(self) -> None:
        self._work: list[_Work] = []
        self._done = 0

    @property
    def queued(self) -> int:
        return len(self._work)

    def give(self, run: Callable[[], None], *, fills: bool = False) -> None:
        self._work.append(_Work(run, fills=fills))

    def copy(self, source: torch.Tensor, target: torch.Tensor | None = None) -> None:
        """Read ``source``; what is written elsewhere than to ``target`` is of no interest."""
        run = partial(self._copied, source, source.clone(), target)
        self._work.append(_Work(run, source, target is not None))

    @staticmethod
    def _copied(source: torch.Tensor, before: torch.Tensor, target: torch.Tensor | None) -> None:
        if not torch.equal(source, before):
            raise RaceError("pinned memory was overwritten before it was copied")
        if target is not None:
            target.copy_(source)

    def reads(self, memory: torch.Tensor) -> bool:
        place = memory.untyped_storage().data_ptr()
        waiting = (each.source for each in self._work[self._done :])
        return any(
            source is not None and source.untyped_storage().data_ptr() == place
            for source in waiting
        )

    def finish(self, until: int | None = None) -> None:
        """Do the first ``until`` things, or all."""
        until = self.queued if until is None else until
        while self._done < until:
            work = self._work[self._done]
            self._done += 1
            with torch.inference_mode():  # a device knows nothing of whose memory this was
                work.run()

    def launch(self, kernel: Callable[[], None]) -> None:
        """Run a kernel: where a graph is captured, as a part of it.

        It runs at once, unless it could see what is still to be written before it.
        """
        if Capture.current is not None:
            Capture.current.kernel(kernel)
            return
        if any(work.fills for work in self._work[self._done :]):
            self.finish()
        kernel()


class FakeEvent:
    def __init__(self, stream: Stream, *, deaf: bool = False) -> None:
        self._stream, self._deaf, self._at = stream, deaf, 0

    def record(self) -> None:
        self._at = self._stream.queued

    def synchronize(self) -> None:
        if not self._deaf:
            self._stream.finish(self._at)


class FakeDevice:
    """``deaf`` events do not wait. On the meta device numbers cannot be read, by anyone."""

    name = "fake GPU"

    def __init__(
        self, kind: str = "cpu", *, deaf: bool = False, stream: Stream | None = None
    ) -> None:
        self.device = torch.device(kind)
        self.stream = stream or Stream()
        self.workspaces: list[int] = []
        self._deaf = deaf
        self._pinned: dict[int, torch.Tensor] = {}
        self._sent: dict[int, torch.Tensor] = {}

    def workspace(self, size: int) -> torch.Tensor:
        self.workspaces.append(size)
        return torch.empty(size, dtype=torch.uint8, device="meta")

    def pinned(self, count: int) -> torch.Tensor:
        with torch.inference_mode(False):  # the host writes to it wherever it is made
            memory = torch.full((count,), -1, dtype=torch.int32)
        self._pinned[memory.data_ptr()] = memory
        return memory

    def send(self, host: torch.Tensor) -> torch.Tensor:
        assert self.is_pinned(host), "what is sent must be pinned, or the copy waits"
        self.stream.copy(host)
        return self._held(host.to(self.device, copy=True))

    def memory(self, count: int) -> torch.Tensor:
        return self._held(torch.zeros(count, dtype=torch.int32, device=self.device))

    def copy(self, target: torch.Tensor, host: torch.Tensor) -> None:
        assert self.is_pinned(host), "what is copied must be pinned, or the copy waits"
        assert self.holds(target)
        self.stream.copy(host, target)

    def event(self) -> FakeEvent:
        return FakeEvent(self.stream, deaf=self._deaf)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu" and (tensor.untyped_storage().data_ptr() in self._pinned)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is memory of the device, or was sent there."""
        if self.device.type == "meta":
            return tensor.device.type == "meta"
        return tensor.untyped_storage().data_ptr() in self._sent

    def _held(self, tensor: torch.Tensor) -> torch.Tensor:
        self._sent[tensor.untyped_storage().data_ptr()] = tensor
        return tensor
