"""The arrays of a decoding step where a CUDA graph finds them: always at the same addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from radixserve.attention.arrays import PagedBatch
from radixserve.attention.staging import Device, Staging, Step, appended

PLAN = 1 << 20
"""Bytes for a plan of FlashInfer, where a wrapper has 8 MiB by default: it takes 13 a piece of work
and 8 a row, and there are a few thousand pieces at most, or two a row if that is more."""


class FixedArrays:
    """Memory of the device that the graphs of all batch sizes read a step's arrays from.

    They can share it, and what FlashInfer plans too: only one of them runs at a time, and what it
    reads is brought there, by copies on the same stream, right before.

    Args:
        device: where.
        rows: of the largest step.
        indices: pages of all rows of a step together, at most.
    """

    def __init__(self, device: Device, rows: int, indices: int):
        self._arrays = device.memory(3 * rows + indices)
        self._indptr = device.memory(rows + 1)
        self._last = device.memory(rows)
        self._plan = device.memory(max(PLAN, 64 * rows) // 4).view(torch.uint8)

    def of(self, rows: int) -> FixedStep:
        """For steps of exactly so many rows."""
        return FixedStep(
            rows, self._arrays, self._indptr[: rows + 1], self._last[:rows], self._plan
        )


@dataclass(frozen=True, slots=True)
class FixedStep:
    """Where steps of R rows lie, each of which computes one token.

    arrays    append_pages | append_offsets | append_lengths | kv_indices ...
              R              R                R
    """

    rows: int
    arrays: torch.Tensor
    indptr: torch.Tensor
    last: torch.Tensor
    plan: torch.Tensor

    def staged(self, batch: PagedBatch, staging: Staging) -> Step:
        """``batch``, which has R rows, brought here; as ``staging.staged``."""
        pages, offsets, lengths = torch.split(self.arrays[: 3 * self.rows], self.rows)
        qo_indptr, kv_indptr, last = staging.fill(
            self.arrays,
            [*appended(batch), batch.kv_indices.numpy()],
            [batch.qo_indptr.numpy(), batch.kv_indptr.numpy(), batch.last_page_len.numpy()],
        )
        return Step(
            tokens=self.rows,
            most=1,
            page_size=batch.page_size,
            qo_indptr=qo_indptr,
            kv_indptr=kv_indptr,
            last_page_len=last,
            kv_indices=self._indices[: len(batch.kv_indices)],
            append_pages=pages,
            append_offsets=offsets,
            append_lengths=lengths,
            shared=None,
        )

    def wrapper(self, kind: Any, workspace: torch.Tensor, *, tensor_cores: bool) -> Any:
        """A ``BatchDecodeWithPagedKVCacheWrapper``, which is ``kind``, that reads from here.

        Its ``plan`` copies indptr and last pages to their places by itself. The indices are in
        theirs already: torch leaves out a copy of memory to itself.
        """
        made = kind(
            workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=tensor_cores,
            paged_kv_indptr_buffer=self.indptr,
            paged_kv_indices_buffer=self._indices,
            paged_kv_last_page_len_buffer=self.last,
        )
        made.reset_workspace_buffer(workspace, self.plan)
        return made

    @property
    def _indices(self) -> torch.Tensor:
        return self.arrays[3 * self.rows :]
