"""The memory that KV pages live in: how many there are, and copies between them."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from radixserve.cache.pages import PageCopy
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError
from radixserve.kernels.cpu.weights import PageForm
from radixserve.kernels.kv_codes import Code
from radixserve.kernels.memory import huge
from radixserve.kernels.page_copy import copy_pages

MOST_PAGES = 1 << 20
"""Of automatic sizing: beyond it the bookkeeping costs more than the cache can give back."""
SCALE_BYTES = 4
ROOM = 4
"""Automatic sizing stops at this many times what all running requests can hold at once."""

Scales = tuple[tuple[float, float], ...]
"""What the keys and what the values of each layer are kept divided by, in FP8."""


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """What a token leaves behind in each layer."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    heads: int = 0
    """Heads of queries."""
    code: Code = "none"
    """Whether what is kept is of ``dtype`` or in 8 bits, with a scale a token and head."""
    scales: Scales | None = None
    """Static ones: what is kept is float8_e4m3fn, and there is no ``code``."""

    @property
    def kept(self) -> torch.dtype:
        """What elements are kept in, where there is no ``code``."""
        return self.dtype if self.scales is None else torch.float8_e4m3fn

    @property
    def format(self) -> str:
        """Says what KV of the same tokens depends on: one of another format is another KV."""
        if self.scales is None:
            return f"{self.dtype} {self.code}"
        packed = b"".join(struct.pack("<2d", *pair) for pair in self.scales)
        return f"{self.dtype} {self.kept} {hashlib.sha256(packed).hexdigest()}"

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values of one token in all layers."""
        coded = self.head_dim + SCALE_BYTES
        vector = self.head_dim * self.kept.itemsize if self.code == "none" else coded
        return self.layers * 2 * self.kv_heads * vector

    def page(self, page_size: int) -> PageForm:
        """A page of one layer as the kernels know it."""
        return PageForm(page_size, self.kv_heads, self.head_dim, self.dtype, self.code)

    def shape(self, num_pages: int, page_size: int) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and dtype of the memory of ``num_pages`` pages."""
        if self.code != "none":
            page = self.token_bytes // self.layers * page_size
            return (self.layers, num_pages, page), torch.uint8
        page_shape = (2, page_size, self.kv_heads, self.head_dim)
        return (self.layers, num_pages, *page_shape), self.kept


def code_of(config: EngineConfig) -> Code:
    """How KV is kept."""
    wanted = config.kv_cache_dtype
    if wanted == "auto":
        return "none"
    return "fp8_e4m3" if wanted == "fp8" else wanted


def page_count(
    config: EngineConfig, geometry: KvGeometry, max_model_len: int, free_bytes: int
) -> int:
    """How many pages to allocate, the scratch page included.

    ``num_pages`` is taken as it is; else ``kv_memory`` is filled; else ``kv_memory_share`` of
    ``free_bytes``, but at most four times what ``max_num_seqs`` requests of ``max_model_len``
    tokens can hold, and at most ``MOST_PAGES``.

    Raises:
        ConfigError: the memory does not hold the scratch page and one more.
    """
    if config.num_pages is not None:
        return config.num_pages
    page_bytes = geometry.token_bytes * config.page_size
    if config.kv_memory is not None:
        pages, setting = config.kv_memory // page_bytes, f"kv_memory ({config.kv_memory} bytes)"
    else:
        budget = int(free_bytes * config.kv_memory_share)
        most = ROOM * config.max_num_seqs * -(-max_model_len // config.page_size)
        pages = min(budget // page_bytes, most + 1, MOST_PAGES)
        setting = f"kv_memory_share ({config.kv_memory_share} of {free_bytes} free bytes)"
    if pages < 2:
        raise ConfigError(
            f"{setting} does not hold two KV pages of {config.page_size} tokens. Give it at least "
            f"{2 * page_bytes} bytes, or make page_size smaller."
        )
    return pages


class KvStorage:
    """KV pages of all layers: ``kv`` is [layers, pages, 2, page_size, kv_heads, head_dim], or
    uint8 [layers, pages, bytes of a page] where KV is kept in 8 bits.

    How the elements of a page lie within it is the attention backend's own affair.

    The memory is not touched until a page is written, so that a large pool costs nothing at start;
    a slot that was never written may hold anything, NaN included.

    Raises:
        ConfigError: the system refuses that much memory.
    """

    def __init__(
        self, geometry: KvGeometry, num_pages: int, page_size: int, device: torch.device
    ) -> None:
        self.geometry = geometry
        self.num_pages = num_pages
        self.page_size = page_size
        shape, dtype = geometry.shape(num_pages, page_size)
        try:
            if device.type == "cpu":
                self.kv = huge(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
            else:
                self.kv = torch.empty(shape, dtype=dtype, device=device)
        except (RuntimeError, MemoryError) as error:
            needed = geometry.token_bytes * page_size * num_pages
            raise ConfigError(
                f"{num_pages} KV pages of {page_size} tokens need {needed} bytes, which {device} "
                "does not have. Lower num_pages or kv_memory."
            ) from error

    def copy_pages(self, copies: Iterable[PageCopy]) -> None:
        """Run ``copies`` in order, in all layers. O(copies · layers · page size)."""
        copy_pages(self.kv, [(copy.source, copy.target) for copy in copies])
