"""Paged attention by the native kernels: pages read in place, shared prefixes read once."""

from __future__ import annotations

import logging
import os
from functools import cache

import torch

from radixserve.attention.arrays import PagedBatch
from radixserve.folders import cache_directory
from radixserve.kernels.cpu import build
from radixserve.kernels.cpu.library import CpuKernels
from radixserve.kernels.cpu.weights import PageForm

log = logging.getLogger(__name__)


@cache
def kernels() -> CpuKernels | None:
    """The native kernels of this machine; None, with one line in the log, where there are none."""
    try:
        return CpuKernels(build.load(cache_directory() / "kernels", log.info))
    except build.KernelsError as error:
        log.warning("attention runs in plain torch, which is several times slower: %s", error)
        return None


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class CpuAttention:
    """An ``AttentionBackend`` over ``kv``, [layers, pages, ...], whose pages have ``form``.

    The kernels lay the elements of a page out in their own order (``kernels/cpu/kv.h``). With
    ``together``, decoding rows that share pages read them once for all.
    """

    def __init__(
        self,
        native: CpuKernels,
        kv: torch.Tensor,
        form: PageForm,
        heads: int,
        *,
        threads: int,
        together: bool = True,
    ):
        self._native = native.attention(kv, form, heads, threads=threads)
        self._together = together

    def begin(self, batch: PagedBatch) -> None:
        """Find out which rows share which pages. O(rows · shared pages)."""
        self._native.begin(batch, together=self._together)

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """See ``AttentionBackend.append``."""
        self._native.append(layer, key, value)

    def run(
        self, layer: int, query: torch.Tensor, *, scale: float, soft_cap: float | None = None
    ) -> torch.Tensor:
        """See ``AttentionBackend.run``. Softmax is in fp32, its products in the KV's dtype."""
        output: torch.Tensor = self._native.run(layer, query, scale=scale, soft_cap=soft_cap)
        return output

    @property
    def read(self) -> tuple[int, int]:
        """Tokens of KV that the decoding rows of this step need, and that are read for them."""
        apart, together = self._native.read
        return apart, together
