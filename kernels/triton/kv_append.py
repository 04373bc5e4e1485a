"""Keys and values of a step into FP8 pages: a launch a layer, two programs a token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def append_fp8(
    kv: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pages: torch.Tensor,
    offsets: torch.Tensor,
    key_scale: float,
    value_scale: float,
) -> None:
    """See ``radixserve.kernels.kv_append.append_fp8``, which has checked the arguments.

    ``key``, ``value`` and ``kv`` may have any strides; nothing is allocated or waited for, so that
    it can be part of a CUDA graph, in which the scales are constants.
    """
    tokens, heads, head_dim = key.shape
    if tokens == 0:
        return
    codes = kv.view(torch.uint8)
    _append[(tokens, 2)](
        codes, key, value, pages, offsets, key_scale, value_scale,
        *codes.stride(), *key.stride(), *value.stride(), pages.stride(0), offsets.stride(0),
        heads * head_dim, HEAD_DIM=head_dim, BLOCK=triton.next_power_of_2(heads * head_dim),
        enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _append(
    codes: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    pages: tl.tensor,
    offsets: tl.tensor,
    key_scale: tl.tensor,
    value_scale: tl.tensor,
    page_stride: tl.tensor,
    which_stride: tl.tensor,
    slot_stride: tl.tensor,
    head_stride: tl.tensor,
    element_stride: tl.tensor,
    key_token: tl.tensor,
    key_head: tl.tensor,
    key_element: tl.tensor,
    value_token: tl.tensor,
    value_head: tl.tensor,
    value_element: tl.tensor,
    pages_stride: tl.tensor,
    offsets_stride: tl.tensor,
    size: tl.tensor,
    HEAD_DIM: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    token = tl.program_id(0).to(tl.int64)
    which = tl.program_id(1)
    index = tl.arange(0, BLOCK)
    inside = index < size
    head = index // HEAD_DIM
    element = index % HEAD_DIM
    if which == 0:
        at = key + token * key_token + head * key_head + element * key_element
        scaled = tl.div_rn(tl.load(at, mask=inside, other=0.0).to(tl.float32), key_scale)
    else:
        at = value + token * value_token + head * value_head + element * value_element
        scaled = tl.div_rn(tl.load(at, mask=inside, other=0.0).to(tl.float32), value_scale)
    page = tl.load(pages + token * pages_stride).to(tl.int64)
    slot = tl.load(offsets + token * offsets_stride).to(tl.int64)
    base = codes + page * page_stride + which * which_stride + slot * slot_stride
    tl.store(base + head * head_stride + element * element_stride, _e4m3(scaled), mask=inside)


@triton.jit
def _e4m3(values: tl.tensor) -> tl.tensor:
    """The codes, uint8, of fp32 ``values``: by integers, which every GPU and the interpreter have.

    An fp32 is cut to the 3 bits of mantissa that e4m3 has by adding just below half of what is cut
    off, and one more where what stays is odd. Below 2**-6 e4m3 counts in steps of 2**-9, which is
    what fp32 counts in at 2**14: adding that number rounds, and leaves the count in the low bits.
    """
    bits = values.to(tl.int32, bitcast=True)
    size = tl.minimum(tl.abs(values), 448.0)
    size_bits = size.to(tl.int32, bitcast=True)
    normal = ((size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20) - (120 << 3)
    small = (size + 16384.0).to(tl.int32, bitcast=True) & 0xF
    code = tl.where(size < 0.015625, small, normal)
    code = tl.where(values != values, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
