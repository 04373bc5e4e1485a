"""The weights of a decoder as the kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radixserve.kernels.memory import huge

PANEL = 32
"""Columns of a weight that lie side by side; outputs are padded to whole panels."""
LANES = 16
LARGEST_HEAD = 512
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight in panels; see ``matrix.h``. ``data`` is its bytes, of ``dtype`` or of int8."""

    data: torch.Tensor
    scales: torch.Tensor | None
    """fp32 [columns, rounded up to panels] where ``data`` is int8."""
    columns: int
    depth: int
    dtype: torch.dtype

    @property
    def padded(self) -> int:
        """Columns, rounded up to whole panels."""
        return -(-self.columns // PANEL) * PANEL


class Arena:
    """Memory for packed weights, which a step reads once, from front to end."""

    def __init__(self, size: int):
        """``size`` in bytes.

        Raises:
            MemoryError: the system refuses that much.
        """
        self._bytes: torch.Tensor = huge(size)
        self._used = 0

    def take(self, size: int) -> torch.Tensor:
        """uint8 [size], zeros; begins at a multiple of 64.

        Raises:
            MemoryError: the arena is used up.
        """
        if self._used + size > len(self._bytes):
            raise MemoryError("more weights are packed than there was room made for")
        taken = self._bytes[self._used : self._used + size]
        self._used += -(-size // 64) * 64
        return taken


@dataclass(slots=True)
class LayerWeights:
    """One layer; vectors are fp32, biases as long as the padded columns, absent parts None."""

    attention_norm: torch.Tensor
    qkv: Packed
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Packed
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate: Packed
    up: Packed
    down: Packed
    rotates: bool


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of a decoder; all weights have ``dtype``."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    norm_epsilon: float
    dtype: torch.dtype

    def check(self) -> None:
        """Raises ValueError for sizes that the kernels do not take."""
        if self.dtype not in DTYPES:
            raise ValueError(f"the kernels compute in float32 and bfloat16, not in {self.dtype}")
        if self.hidden % LANES or self.inner % 2:
            raise ValueError(f"hidden size {self.hidden} is no multiple of {LANES}")
        check_heads(self.heads, self.kv_heads, self.head_dim)


CODES = {"none": 0, "int8": 1, "fp8_e4m3": 2}
"""What a slot of KV holds: elements as they are, or one byte each beside a scale."""


@dataclass(frozen=True, slots=True)
class PageForm:
    """What a page of KV holds, in one layer."""

    page_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    """Of queries, keys and values as they come; also of what is kept, unless ``code`` says."""
    code: str = "none"


def check_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    """Raises ValueError for heads that the kernels do not take."""
    if head_dim % LANES or head_dim > LARGEST_HEAD:
        raise ValueError(
            f"a head size of {head_dim} is no multiple of {LANES} up to {LARGEST_HEAD}"
        )
    if heads % kv_heads:
        raise ValueError(f"{heads} heads are not shared evenly by {kv_heads} KV heads")
