"""Copies of KV pages on a GPU: all that do not depend on one another in one launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl

Copies = Sequence[tuple[int, int]]

WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
BLOCK = 1024
"""Words that one program moves."""


def copy_pages(kv: torch.Tensor, copies: Copies) -> None:
    """See ``radixserve.kernels.page_copy.copy_pages``; the pages have been checked to exist.

    Copies that depend on an earlier one go into a later launch of the same stream.

    Raises:
        ValueError: a page of one layer is not one run of memory.
    """
    words = _words(kv)
    layers, _, size = words.shape
    pairs = torch.tensor(copies, dtype=torch.int32)
    if kv.is_cuda:  # pinned, or the host would wait for all that the stream has still to do
        pairs = pairs.pin_memory().to(kv.device, non_blocking=True)
    chunks = triton.cdiv(size, BLOCK)
    for first, end in waves(copies):
        grid = ((end - first) * chunks, layers)
        _copy[grid](
            words, pairs[first:end], words.stride(0), words.stride(1), size, chunks, BLOCK=BLOCK,
            enable_fp_fusion=False,
        )  # fmt: skip


def waves(copies: Copies) -> Iterator[tuple[int, int]]:
    """Ranges of ``copies`` that may run at once: none reads or writes what another one writes.

    In order, these give what the copies give one after the other. O(copies).
    """
    first = 0
    read: set[int] = set()
    written: set[int] = set()
    for index, (source, target) in enumerate(copies):
        if source in written or target in written or target in read:
            yield first, index
            first, read, written = index, set(), set()
        read.add(source)
        written.add(target)
    if first < len(copies):
        yield first, len(copies)


def _words(kv: torch.Tensor) -> torch.Tensor:
    """``kv`` as [layers, pages, words], in the widest integers that it can be cut into."""
    order = sorted(range(2, kv.dim()), key=lambda dim: (kv.stride(dim), kv.size(dim)), reverse=True)
    ordered = kv.permute(0, 1, *order)
    try:
        flat = ordered.view(*kv.shape[:2], -1)
    except RuntimeError as error:
        raise ValueError(
            f"a page of KV of {list(kv.shape)} and strides {list(kv.stride())} is not one run"
        ) from error
    starts = (kv.stride(0), kv.stride(1), kv.storage_offset(), flat.shape[-1])
    fits = (word for word in WORDS if all(n * kv.itemsize % word.itemsize == 0 for n in starts))
    return flat.view(next(fits))


@triton.jit
def _copy(
    kv: tl.tensor,
    pairs: tl.tensor,
    layer_stride: tl.tensor,
    page_stride: tl.tensor,
    size: tl.tensor,
    chunks: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    program = tl.program_id(0)
    layer = tl.program_id(1).to(tl.int64)
    pair = program // chunks
    source = tl.load(pairs + 2 * pair).to(tl.int64)
    target = tl.load(pairs + 2 * pair + 1).to(tl.int64)
    word = program % chunks * BLOCK + tl.arange(0, BLOCK)
    inside = word < size
    base = kv + layer * layer_stride
    moved = tl.load(base + source * page_stride + word, mask=inside)
    tl.store(base + target * page_stride + word, moved, mask=inside)
