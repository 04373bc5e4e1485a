"""Copies of the head of a KV page: how part of a block is shared."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def copy_pages(kv: torch.Tensor, copies: Iterable[tuple[int, int, int]]) -> None:
    """Copy the first ``tokens`` slots of page ``source`` to page ``target``, one after the other.

    ``kv`` is [layers, pages, 2, page_size, kv_heads, head_dim] of any dtype, changed in place;
    ``copies`` are (source, target, tokens). O(copies · layers · tokens).

    Raises:
        IndexError: a page does not exist.
    """
    for source, target, tokens in copies:
        kv[:, target, :, :tokens] = kv[:, source, :, :tokens]
