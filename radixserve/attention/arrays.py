"""From a step plan to the arrays that every attention backend reads."""

from __future__ import annotations

from array import array
from collections.abc import Sequence, Sized
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixserve.scheduling.plan import StepPlan

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Unknown:
    """Tokens that the step before chose, and that only the device knows; both int64 [U], on it."""

    places: torch.Tensor
    """Where among the tokens of the batch."""
    tokens: torch.Tensor

    def fill(self, token_ids: torch.Tensor) -> None:
        """Put them into ``token_ids`` on the device, without waiting for it."""
        token_ids.index_copy_(0, self.places, self.tokens)


@dataclass(slots=True)
class PagedBatch:
    """R rows of T new tokens in all, whose context lies in P pages: FlashInfer's paged CSR layout.

    All tensors but ``unknown`` are on the CPU. Row ``r`` computes tokens
    ``qo_indptr[r] .. qo_indptr[r + 1]``, the last of its context, and reads pages
    ``kv_indices[kv_indptr[r] : kv_indptr[r + 1]]``, which include those that its new tokens are
    written to.
    """

    page_size: int
    qo_indptr: torch.Tensor
    """int32 [R + 1]."""
    kv_indptr: torch.Tensor
    """int32 [R + 1]."""
    kv_indices: torch.Tensor
    """int32 [P], page ids."""
    last_page_len: torch.Tensor
    """int32 [R], 1 .. page_size: tokens in the last page of each row."""
    token_ids: torch.Tensor
    """int64 [T]; -1 where ``unknown`` has the token."""
    positions: torch.Tensor
    """int64 [T]."""
    append_pages: torch.Tensor
    """int64 [T]: the page that each new token's KV goes to."""
    append_offsets: torch.Tensor
    """int64 [T]: its place in that page."""
    sample_rows: torch.Tensor
    """int64 [S]: which tokens are the last of a row that samples, in order of rows; then those that
    score the next token of their prompt."""
    scored: int = 0
    """How many of these score."""
    unknown: Unknown | None = None


def paged_batch(plan: StepPlan, page_size: int) -> PagedBatch:
    """The arrays of ``plan``, made by joining bytes. O(rows + tokens + pages), all of it memcpy.

    Raises:
        ValueError: the plan is empty, a row has no token, or a row lacks pages.
    """
    rows = plan.rows
    if not rows:
        raise ValueError("a step without rows has no arrays")
    tokens = [row.tokens for row in rows]
    counts, samples = np.ones(len(rows), np.int64), np.ones(len(rows), np.bool_)
    if chunks := rows[plan.decoding :]:
        counts[plan.decoding :] = [row.count for row in chunks]
        samples[plan.decoding :] = [row.sampling is not None for row in chunks]
    if np.count_nonzero(counts) < len(rows):
        raise ValueError(f"row {int(counts.argmin())} of the plan computes no token")
    starts = np.fromiter([row.start for row in rows], np.int64, len(rows))
    contexts = starts + counts
    needed = (contexts - 1) // page_size + 1
    pages = _first([row.pages for row in rows], needed)

    qo_indptr, kv_indptr = _indptr(counts), _indptr(needed)
    kv_indices = np.frombuffer(bytearray().join(pages), np.int32)
    token_ids = np.frombuffer(b"".join(tokens), np.dtype(">i4")).astype(np.int64)
    positions = np.arange(len(token_ids)) + np.repeat(starts - qo_indptr[:-1], counts)
    page_of_row = positions // page_size
    scoring = [
        np.arange(row.scores.start, row.scores.stop) - row.start + first
        for row, first in zip(chunks, qo_indptr[plan.decoding : -1].tolist(), strict=True)
        if row.scores
    ]
    sample_rows = (qo_indptr[1:] - 1)[samples]
    if scoring:
        sample_rows = np.concatenate([sample_rows, *scoring])
    append_pages = kv_indices[page_of_row + np.repeat(kv_indptr[:-1], counts)]
    return PagedBatch(
        page_size=page_size,
        qo_indptr=_int32(qo_indptr),
        kv_indptr=_int32(kv_indptr),
        kv_indices=torch.from_numpy(kv_indices),
        last_page_len=_int32(contexts - (needed - 1) * page_size),
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        append_pages=torch.from_numpy(append_pages.astype(np.int64)),
        append_offsets=torch.from_numpy(positions - page_of_row * page_size),
        sample_rows=torch.from_numpy(sample_rows),
        scored=sum(map(len, scoring)),
    )


def _first(pages: list[array[int]], needed: Ints) -> list[array[int]]:
    """The first ``needed`` pages of each row; as a rule it has no more."""
    held = _lengths(pages)
    spare = held - needed
    if not np.count_nonzero(spare):
        return pages
    row = int(spare.argmin())
    if spare[row] < 0:
        raise ValueError(f"row {row} of the plan needs {needed[row]} pages and has {held[row]}")
    return [row[:count] for row, count in zip(pages, needed.tolist(), strict=True)]


def _indptr(lengths: Ints) -> Ints:
    indptr = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=indptr[1:])
    return indptr


def _lengths(parts: Sequence[Sized]) -> Ints:
    return np.fromiter(map(len, parts), np.int64, len(parts))


def _int32(values: Ints) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int32))
