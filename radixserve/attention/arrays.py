"""From a step plan to the arrays that every attention backend reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixserve.scheduling.plan import StepPlan
from radixserve.tokens import TOKEN_BYTES


@dataclass(slots=True)
class PagedBatch:
    """R rows of T new tokens in all, whose context lies in P pages: FlashInfer's paged CSR layout.

    All tensors are on the CPU. Row ``r`` computes tokens ``qo_indptr[r] .. qo_indptr[r + 1]``, the
    last of its context, and reads pages ``kv_indices[kv_indptr[r] : kv_indptr[r + 1]]``, which
    include those that its new tokens are written to.
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
    """int64 [T]."""
    positions: torch.Tensor
    """int64 [T]."""
    append_pages: torch.Tensor
    """int64 [T]: the page that each new token's KV goes to."""
    append_offsets: torch.Tensor
    """int64 [T]: its place in that page."""
    sample_rows: torch.Tensor
    """int64 [S]: which tokens are the last of a row that samples, in order of rows."""


def paged_batch(plan: StepPlan, page_size: int) -> PagedBatch:
    """The arrays of ``plan``, made by joining bytes. O(rows + tokens + pages), all of it memcpy.

    Raises:
        ValueError: the plan is empty, a row has no token, or a row lacks pages.
    """
    rows = plan.rows
    if not rows:
        raise ValueError("a step without rows has no arrays")
    counts = _int64([len(row.tokens) for row in rows]) // TOKEN_BYTES
    starts = _int64([row.start for row in rows])
    contexts = starts + counts
    needed = -(-contexts // page_size)
    if not counts.all():
        raise ValueError(f"row {int(counts.argmin())} of the plan computes no token")
    held = _int64([len(row.pages) for row in rows])
    if (held < needed).any():
        row = int((held < needed).argmax())
        raise ValueError(f"row {row} of the plan needs {needed[row]} pages and has {held[row]}")

    qo_indptr, kv_indptr = _indptr(counts), _indptr(needed)
    pages = [row.pages for row in rows]
    if (held > needed).any():
        pages = [row[:n] for row, n in zip(pages, needed.tolist(), strict=True)]
    kv_indices = np.frombuffer(bytearray().join(pages), np.int32)
    tokens = np.frombuffer(b"".join([row.tokens for row in rows]), np.dtype(">i4"))
    positions = np.arange(len(tokens)) + np.repeat(starts - qo_indptr[:-1], counts)
    page_of_row, offsets = np.divmod(positions, page_size)
    samples = np.array([row.sampling is not None for row in rows])
    return PagedBatch(
        page_size=page_size,
        qo_indptr=_int32(qo_indptr),
        kv_indptr=_int32(kv_indptr),
        kv_indices=torch.from_numpy(kv_indices),
        last_page_len=_int32(contexts - (needed - 1) * page_size),
        token_ids=torch.from_numpy(tokens.astype(np.int64)),
        positions=torch.from_numpy(positions),
        append_pages=torch.from_numpy(
            kv_indices[page_of_row + np.repeat(kv_indptr[:-1], counts)].astype(np.int64)
        ),
        append_offsets=torch.from_numpy(offsets),
        sample_rows=torch.from_numpy((qo_indptr[1:] - 1)[samples]),
    )


def _indptr(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    indptr = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return indptr


def _int64(values: list[int]) -> npt.NDArray[np.int64]:
    # From a list, which is built faster than a generator is read.
    return np.fromiter(values, np.int64, len(values))


def _int32(values: npt.NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int32))
