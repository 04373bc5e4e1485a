"""Keys and values in 8 bits, in plain torch: what ``cpu/kv.h`` is judged by.

Each token and head has a scale of its own, the largest size among its elements over the largest
code, so that no scale depends on what was appended before or after.
"""

from __future__ import annotations

from typing import Literal

import torch

Code = Literal["none", "int8", "fp8_e4m3"]

LARGEST = {"int8": 127.0, "fp8_e4m3": 448.0}


def quantize(vectors: torch.Tensor, code: Code) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, in the form of ``vectors`` ([..., head_dim]), and fp32 scales ([...]).

    ``fp8_e4m3`` is the format of Micikevicius et al., "FP8 formats for deep learning" (2022).
    """
    sizes = vectors.float().abs().amax(-1)
    largest = torch.full_like(sizes, LARGEST[code])  # a number over a tensor is rounded twice
    scales = sizes / largest
    shares = torch.where(sizes > 0, largest / sizes, 0.0)
    scaled = vectors.float() * shares[..., None]
    if code == "int8":
        return scaled.round().to(torch.int8), scales
    return scaled.to(torch.float8_e4m3fn), scales


def dequantize(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """fp32 vectors from what ``quantize`` returned."""
    return codes.float() * scales[..., None]
