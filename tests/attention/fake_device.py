"""A stand-in for a GPU that makes the copies it is asked for as late as it may.

Whoever writes to memory that a queued copy still has to read gets a ``RaceError``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


class RaceError(AssertionError):
    """Memory was written while a copy that is queued still had to read it."""


@dataclass
class _Copy:
    source: torch.Tensor
    before: torch.Tensor


class Stream:
    """Copies that the device has to make, in order; it makes them when someone waits."""

    def __init__(self) -> None:
        self._copies: list[_Copy] = []
        self._done = 0

    @property
    def queued(self) -> int:
        return len(self._copies)

    def copy(self, source: torch.Tensor) -> None:
        self._copies.append(_Copy(source, source.clone()))

    def reads(self, memory: torch.Tensor) -> bool:
        place = memory.untyped_storage().data_ptr()
        waiting = self._copies[self._done :]
        return any(each.source.untyped_storage().data_ptr() == place for each in waiting)

    def finish(self, until: int | None = None) -> None:
        """Make the first ``until`` copies, or all."""
        until = self.queued if until is None else until
        for copy in self._copies[self._done : until]:
            if not torch.equal(copy.source, copy.before):
                raise RaceError("pinned memory was overwritten before it was copied")
        self._done = max(self._done, until)


class FakeEvent:
    def __init__(self, stream: Stream, *, deaf: bool) -> None:
        self._stream, self._deaf, self._at = stream, deaf, 0

    def record(self) -> None:
        self._at = self._stream.queued

    def synchronize(self) -> None:
        if not self._deaf:
            self._stream.finish(self._at)


class FakeDevice:
    """``deaf`` events do not wait. On the meta device numbers cannot be read, by anyone."""

    name = "fake GPU"

    def __init__(self, kind: str = "cpu", *, deaf: bool = False) -> None:
        self.device = torch.device(kind)
        self.stream = Stream()
        self.workspaces: list[int] = []
        self._deaf = deaf
        self._pinned: dict[int, torch.Tensor] = {}
        self._sent: dict[int, torch.Tensor] = {}

    def workspace(self, size: int) -> torch.Tensor:
        self.workspaces.append(size)
        return torch.empty(size, dtype=torch.uint8, device="meta")

    def pinned(self, count: int) -> torch.Tensor:
        memory = torch.full((count,), -1, dtype=torch.int32)
        self._pinned[memory.data_ptr()] = memory
        return memory

    def send(self, host: torch.Tensor) -> torch.Tensor:
        assert self.is_pinned(host), "what is sent must be pinned, or the copy waits"
        self.stream.copy(host)
        sent = host.to(self.device, copy=True)
        self._sent[sent.untyped_storage().data_ptr()] = sent
        return sent

    def event(self) -> FakeEvent:
        return FakeEvent(self.stream, deaf=self._deaf)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu" and (tensor.untyped_storage().data_ptr() in self._pinned)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was brought to the device by ``send``."""
        if self.device.type == "meta":
            return tensor.device.type == "meta"
        return tensor.untyped_storage().data_ptr() in self._sent
