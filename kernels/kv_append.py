"""Keys and values of a step into FP8 pages under a static scale."""

from __future__ import annotations

import torch

LARGEST = 448.0
"""Of e4m3 (Micikevicius et al., "FP8 formats for deep learning", 2022)."""


def append_fp8(
    kv: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pages: torch.Tensor,
    offsets: torch.Tensor,
    *,
    key_scale: float,
    value_scale: float,
) -> None:
    """Divide by the scale, saturate at ±448, round to the nearest e4m3 (ties to even), and write.

    ``kv`` is float8_e4m3fn [pages, 2, page_size, kv_heads, head_dim], one layer, changed in place;
    ``key`` and ``value`` are fp32, bf16 or fp16 [T, kv_heads, head_dim]; ``pages`` and ``offsets``,
    int32 or int64 [T] on the device of ``kv``, say where each token goes. They are not checked,
    which would wait for the GPU. Where two tokens have the same slot, one of them is there. NaN
    stays NaN.

    Raises:
        ValueError: a shape or a dtype is another one, or a scale is not above 0.
    """
    _check(kv, key, value, pages, offsets)
    if not (key_scale > 0 and value_scale > 0):
        raise ValueError(f"scales must be above 0, not {key_scale} and {value_scale}")
    if kv.is_cuda:
        from radixserve.kernels.triton import kv_append

        kv_append.append_fp8(kv, key, value, pages, offsets, key_scale, value_scale)
    else:
        append_fp8_in_torch(kv, key, value, pages, offsets, key_scale, value_scale)


def append_fp8_in_torch(
    kv: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pages: torch.Tensor,
    offsets: torch.Tensor,
    key_scale: float,
    value_scale: float,
) -> None:
    """What every other way of appending has to equal, bit for bit."""
    codes = kv.view(torch.uint8)  # torch cannot write to chosen rows of float8
    for which, (vectors, scale) in enumerate(((key, key_scale), (value, value_scale))):
        divisor = torch.tensor(scale, dtype=torch.float32, device=kv.device)
        scaled = (vectors.float() / divisor).clamp(-LARGEST, LARGEST)
        kept = scaled.to(torch.float8_e4m3fn).view(torch.uint8)
        codes[pages.long(), which, offsets.long()] = kept


def _check(
    kv: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pages: torch.Tensor,
    offsets: torch.Tensor,
) -> None:
    tokens = (len(key), *kv.shape[-2:])
    if kv.dtype != torch.float8_e4m3fn or kv.dim() != 5 or kv.shape[1] != 2:
        raise ValueError(f"float8_e4m3fn [pages, 2, ...] is wanted, not {kv.dtype} {kv.shape}")
    if key.shape != tokens or value.shape != tokens or key.dtype != value.dtype:
        raise ValueError(
            f"key and value must be alike, {list(tokens)}, not {key.dtype} {list(key.shape)} "
            f"and {value.dtype} {list(value.shape)}"
        )
    for slots in (pages, offsets):
        if slots.shape != tokens[:1] or slots.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"int32 or int64 [{len(key)}] is wanted, not {slots.dtype} {slots.shape}"
            )
