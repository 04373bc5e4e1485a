"""Copies of KV pages: how part of a block is shared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


def copy_pages(kv: torch.Tensor, copies: Iterable[tuple[int, int]]) -> None:
    """Copy page ``source`` to page ``target``, with the result of one copy after the other.

    Whole pages, since only the attention backend knows where in a page its first tokens lie; the
    slots behind them are written before they are read. ``kv`` is [layers, pages, ...] of any
    dtype, changed in place; ``copies`` are (source, target). O(copies · layers · page).

    Raises:
        IndexError: a page does not exist; nothing has been copied.
    """
    pairs = [(source, target) for source, target in copies if source != target]
    if not pairs:
        return
    pages = kv.shape[1]
    wrong = next((page for pair in pairs for page in pair if not 0 <= page < pages), None)
    if wrong is not None:
        raise IndexError(f"page {wrong} does not exist: there are {pages}")
    if kv.is_cuda:
        from radixserve.kernels.triton import page_copy

        page_copy.copy_pages(kv, pairs)
    else:
        copy_pages_in_torch(kv, pairs)


def copy_pages_in_torch(kv: torch.Tensor, copies: Sequence[tuple[int, int]]) -> None:
    """What every other way of copying has to equal."""
    for source, target in copies:
        kv[:, target] = kv[:, source]
