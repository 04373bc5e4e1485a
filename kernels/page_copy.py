"""Copies of KV pages: how part of a block is shared."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def copy_pages(kv: torch.Tensor, copies: Iterable[tuple[int, int]]) -> None:
    """Copy page ``source`` to page ``target``, one after the other.

    Whole pages, since only the attention backend knows where in a page its first tokens lie; the
    slots behind them are written before they are read. ``kv`` is [layers, pages, ...] of any
    dtype, changed in place; ``copies`` are (source, target). O(copies · layers · page).

    Raises:
        IndexError: a page does not exist.
    """
    for source, target in copies:
        kv[:, target] = kv[:, source]
