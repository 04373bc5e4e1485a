"""What a decoder layer computes beside attention and products of matrices."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional


class Ops(Protocol):
    """The small operations of a layer. None of them waits for the device."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """``x`` [T, size] or [T, heads, size], divided by its root mean square and multiplied by
        ``weight``, [size] (Zhang and Sennrich, 2019)."""

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        """Add ``x`` to ``residual``, [T, size] both, in place; returns the norm of the sum.

        ``x`` may be overwritten.
        """

    def rotate(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        rotations: torch.Tensor,
    ) -> None:
        """Turn ``query``, [T, heads, size], and ``key``, [T, kv_heads, size], in place.

        The first half of a head is paired with the second. ``rotations`` is fp32 [length, size]:
        the cosines of each position, then its sines; ``positions`` int64 [T].
        """

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """``silu(x[:, :inner]) * x[:, inner:]`` of ``x`` [T, 2 * inner]."""


class TorchOps:
    """In plain torch and fp32: the reference."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        return (wide * scale * weight.float()).to(x.dtype)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        return self.rms_norm(residual.add_(x), weight, epsilon)

    def rotate(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        rotations: torch.Tensor,
    ) -> None:
        cosines, sines = rotations[positions][:, None].chunk(2, -1)
        for x in (query, key):
            first, second = x.float().chunk(2, -1)
            turned = [first * cosines - second * sines, second * cosines + first * sines]
            x.copy_(torch.cat(turned, -1))

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.float().chunk(2, -1)
        return (functional.silu(gate) * up).to(x.dtype)


class FlashInferOps:
    """FlashInfer's fused kernels, for float16 and bfloat16 on a GPU.

    Raises:
        ImportError: flashinfer is not installed.
    """

    def __init__(self) -> None:
        import flashinfer.activation
        import flashinfer.norm
        import flashinfer.rope

        self._norm = flashinfer.norm
        self._rope = flashinfer.rope
        self._activation = flashinfer.activation

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        normed: torch.Tensor = self._norm.rmsnorm(x, weight, eps=epsilon)
        return normed

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        self._norm.fused_add_rmsnorm(x, residual, weight, eps=epsilon)
        return x

    def rotate(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        rotations: torch.Tensor,
    ) -> None:
        # Views, or an error: what is turned must be the very memory that was passed.
        self._rope.apply_rope_with_cos_sin_cache_inplace(
            positions=positions,
            query=query.view(len(query), -1),
            key=key.view(len(key), -1),
            head_size=query.shape[-1],
            cos_sin_cache=rotations,
            is_neox=True,
        )

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        activated: torch.Tensor = self._activation.silu_and_mul(x)
        return activated
