"""How the arrays of a step reach a device that is still busy with the step before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from radixserve.attention.arrays import PagedBatch
from radixserve.attention.groups import Cascade

Int32s = npt.NDArray[np.int32]


class Event(Protocol):
    """A point in the work queued on the device, like ``torch.cuda.Event``."""

    def record(self) -> None:
        """Be behind all that is queued now."""

    def synchronize(self) -> None:
        """Wait until the device got there; at once if nothing was recorded."""


class Device(Protocol):
    """What is asked of the device besides computing, so that tests can watch over it."""

    name: str

    def workspace(self, size: int) -> torch.Tensor:
        """``size`` bytes on the device, zeros."""

    def pinned(self, count: int) -> torch.Tensor:
        """int32 [count] in host memory that the device copies from by itself."""

    def send(self, host: torch.Tensor) -> torch.Tensor:
        """A copy of pinned memory on the device, queued; ``host`` must stay as it is until then."""

    def memory(self, count: int) -> torch.Tensor:
        """int32 [count] on the device, zeros, for as long as there is the tensor."""

    def copy(self, target: torch.Tensor, host: torch.Tensor) -> None:
        """``send``, into memory of the device that is there already."""

    def receive(self, source: torch.Tensor) -> torch.Tensor:
        """A copy in pinned memory, queued; not to be read before an event behind it has come."""

    def event(self) -> Event: ...


class CudaDevice:
    """The CUDA device that ``device`` names; what is queued is queued on the current stream."""

    def __init__(self, device: torch.device):
        self.name = torch.cuda.get_device_name(device)
        self._device = device

    def workspace(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=self._device)

    def pinned(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.int32, pin_memory=True)

    def send(self, host: torch.Tensor) -> torch.Tensor:
        return host.to(self._device, non_blocking=True)

    def memory(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int32, device=self._device)

    def copy(self, target: torch.Tensor, host: torch.Tensor) -> None:
        target.copy_(host, non_blocking=True)

    def receive(self, source: torch.Tensor) -> torch.Tensor:
        host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        return host.copy_(source, non_blocking=True)

    def event(self) -> Event:
        return torch.cuda.Event()  # type: ignore[no-untyped-call]


class Staging:
    """Pinned memory that a step's arrays go through, all in one copy.

    A step is staged while the device may still copy what the step before staged, here and in the
    buffers of the wrappers that were planned: ``wait`` comes before anything of the next step is
    written, ``close`` after the last copy is queued. The copies are queued ahead of their step's
    kernels, so waiting for them leaves the device with that step to do.
    """

    def __init__(self, device: Device, count: int = 1 << 16):
        self._device = device
        self._memory = device.pinned(count)
        self._done = device.event()

    def wait(self) -> None:
        """Until the device has copied what was queued before the last ``close``."""
        self._done.synchronize()

    def close(self) -> None:
        """All copies of this step are queued."""
        self._done.record()

    def load(self, arrays: Sequence[Int32s]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each of ``arrays`` as int32 in pinned memory and on the device. Call ``wait`` before.

        What is in pinned memory is the step's until the next ``load`` or ``fill``.
        """
        host = self._gathered(arrays)
        sent = self._device.send(host)
        lengths = [len(each) for each in arrays]
        return list(zip(torch.split(host, lengths), torch.split(sent, lengths), strict=True))

    def fill(
        self, target: torch.Tensor, arrays: Sequence[Int32s], kept: Sequence[Int32s]
    ) -> tuple[torch.Tensor, ...]:
        """``load`` of ``arrays``, one behind the other, into memory of the device.

        Returns:
            ``kept`` in pinned memory; those do not go to the device.
        """
        host = self._gathered([*arrays, *kept])
        count = sum(len(each) for each in arrays)
        self._device.copy(target[:count], host[:count])
        return torch.split(host[count:], [len(each) for each in kept])

    def _gathered(self, arrays: Sequence[Int32s]) -> torch.Tensor:
        total = sum(len(each) for each in arrays)
        if total > len(self._memory):
            self._memory = self._device.pinned(2 * total)
        host = self._memory[:total]
        np.concatenate(arrays, out=host.numpy(), casting="no")
        return host


@dataclass(slots=True)
class Merge:
    """See ``groups.Level``; on the device."""

    span: int
    first: int
    places: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(slots=True)
class Shared:
    """The shared runs of a step. What FlashInfer plans with is pinned, the rest on the device."""

    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    last_page_len: torch.Tensor
    kv_indices: torch.Tensor
    queries: torch.Tensor | None
    stacked: int
    most: int
    """Queries of the run that has most."""
    merges: list[Merge]


@dataclass(slots=True)
class Step:
    """What the layers of a step share. Indptr and last pages are pinned, the rest on the device."""

    tokens: int
    most: int
    """New tokens of the row that has most."""
    page_size: int
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    last_page_len: torch.Tensor
    kv_indices: torch.Tensor
    append_pages: torch.Tensor
    append_offsets: torch.Tensor
    append_lengths: torch.Tensor
    shared: Shared | None


def staged(batch: PagedBatch, found: Cascade | None, staging: Staging) -> Step:
    """The arrays of a step where FlashInfer wants each: pinned, or on the device."""
    pages, offsets, lengths = appended(batch)
    arrays = {
        "qo_indptr": batch.qo_indptr.numpy(),
        "kv_indptr": batch.kv_indptr.numpy() if found is None else found.own_indptr,
        "kv_indices": batch.kv_indices.numpy() if found is None else found.own_indices,
        "last_page_len": batch.last_page_len.numpy(),
        "append_pages": pages,
        "append_offsets": offsets,
        "append_lengths": lengths,
    }
    if found is not None:
        arrays |= _shared_arrays(found, batch.page_size)
    staged = dict(zip(arrays, staging.load(list(arrays.values())), strict=True))
    host = {name: pair[0] for name, pair in staged.items()}
    device = {name: pair[1] for name, pair in staged.items()}
    return Step(
        tokens=len(offsets),
        most=int(np.diff(arrays["qo_indptr"]).max()),
        page_size=batch.page_size,
        qo_indptr=host["qo_indptr"],
        kv_indptr=host["kv_indptr"],
        last_page_len=host["last_page_len"],
        kv_indices=device["kv_indices"],
        append_pages=device["append_pages"],
        append_offsets=device["append_offsets"],
        append_lengths=device["append_lengths"],
        shared=None if found is None else _shared(found, host, device),
    )


def appended(batch: PagedBatch) -> tuple[Int32s, Int32s, Int32s]:
    """Each new token as the last one of a sequence of a page: the page, its place, the length."""
    offsets = batch.append_offsets.numpy().astype(np.int32)
    return batch.append_pages.numpy().astype(np.int32), offsets, offsets + np.int32(1)


def _shared_arrays(found: Cascade, page_size: int) -> dict[str, Int32s]:
    arrays = {
        "shared qo_indptr": found.qo_indptr,
        "shared kv_indptr": found.kv_indptr,
        "shared last_page_len": np.full(len(found.kv_indptr) - 1, page_size, np.int32),
        "shared kv_indices": found.kv_indices,
    }
    if found.queries is not None:
        arrays["queries"] = found.queries
    for depth, level in enumerate(found.levels):
        if level.places is not None:
            arrays[f"places {depth}"] = level.places
        if level.mask is not None:
            padded = np.pad(level.mask, (0, -len(level.mask) % 4))
            arrays[f"mask {depth}"] = padded.view(np.int32)
    return arrays


def _shared(
    found: Cascade, host: dict[str, torch.Tensor], device: dict[str, torch.Tensor]
) -> Shared:
    merges = []
    for depth, level in enumerate(found.levels):
        mask = device.get(f"mask {depth}")
        if mask is not None:
            mask = mask.view(torch.uint8)[: level.span]
        merges.append(Merge(level.span, level.first, device.get(f"places {depth}"), mask))
    return Shared(
        qo_indptr=host["shared qo_indptr"],
        kv_indptr=host["shared kv_indptr"],
        last_page_len=host["shared last_page_len"],
        kv_indices=device["shared kv_indices"],
        queries=device.get("queries"),
        stacked=found.stacked,
        most=int(np.diff(found.qo_indptr).max()),
        merges=merges,
    )
