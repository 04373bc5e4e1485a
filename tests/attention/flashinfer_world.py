"""The FlashInfer backend over stand-ins for FlashInfer and for the GPU, beside the reference."""

from __future__ import annotations

from typing import Any

import torch

from radixserve.attention.cascade import CascadeCost
from radixserve.attention.flashinfer import ALWAYS, FlashInferAttention
from radixserve.attention.reference import ReferenceAttention
from tests.attention.fake_device import FakeDevice
from tests.attention.fake_flashinfer import FakeFlashInfer
from tests.attention.world import World

TOLERANCE = {torch.float16: 3e-3, torch.bfloat16: 2e-2}
NEVER = CascadeCost(level=1.0, row=0.0, read=1e-9, compute=0.0)
DECODE, PAGED = "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"
FP8 = torch.float8_e4m3fn


def world(page_size: int, **how: Any) -> World:
    return World(page_size, **{"dtype": torch.float16, **how})


def flashinfer(
    each: World, device: FakeDevice | None = None, kv: torch.Tensor | None = None, **how: Any
) -> FlashInferAttention:
    device = device or FakeDevice()
    return FlashInferAttention(
        each.empty() if kv is None else kv,
        each.heads,
        query_dtype=each.dtype,
        most_tokens=8192,
        library=how.pop("library", None) or FakeFlashInfer(device),
        device=device,
        **{"cost": ALWAYS, **how},
    )


def check(each: World, soft_cap: float | None = None, **how: Any) -> FakeFlashInfer:
    """The calls that the backend made while it did what the reference does."""
    backend = flashinfer(each, **how)
    expected, actual = each.attend([ReferenceAttention(each.empty()), backend], soft_cap)
    tolerance = TOLERANCE[each.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
    assert isinstance(backend._library, FakeFlashInfer)
    return backend._library


def rounded(vectors: torch.Tensor, scale: float) -> torch.Tensor:
    """What float8 keeps of them: divided in fp32, so that they are rounded once."""
    return (vectors.float() / torch.tensor(scale)).clamp(-448, 448).to(FP8)


class Rounded(ReferenceAttention):
    """The reference, on KV that went through float8 and back."""

    used = (1.0, 1.0)

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        back = [
            (rounded(each, scale).float() * scale).to(each.dtype)
            for each, scale in zip((key, value), self.used, strict=True)
        ]
        super().append(layer, *back)


def coded(each: World) -> torch.Tensor:
    """A pool in float8 in which no slot is a number."""
    return torch.full(each.empty().shape, 0x7F, dtype=torch.uint8).view(FP8)
