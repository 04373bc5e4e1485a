"""KV in 8 bits: the kernels against plain torch that rounds what it is given in the same way."""

from __future__ import annotations

import math

import pytest
import torch

from radixserve.attention.arrays import paged_batch
from radixserve.attention.backend import AttentionBackend
from radixserve.attention.cpu import CpuAttention, kernels
from radixserve.attention.reference import ReferenceAttention
from radixserve.kernels.kv_codes import LARGEST, Code, dequantize, quantize
from radixserve.scheduling.plan import StepPlan
from tests.attention.world import LAYER, TOLERANCE, World

CODES: tuple[Code, ...] = ("int8", "fp8_e4m3")

pytestmark = pytest.mark.skipif(
    kernels() is None, reason="there is no C++ compiler to make the native kernels with"
)


class Rounded(ReferenceAttention):
    """The reference, on KV that went through a code and back."""

    code: Code = "int8"

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        back = [dequantize(*quantize(each, self.code)).to(each.dtype) for each in (key, value)]
        super().append(layer, *back)


def coded(world: World, code: Code) -> list[AttentionBackend]:
    native = kernels()
    assert native is not None, "this test needs a C++ compiler"
    form = world.form(code)
    # Codes and scales of slots that were never written are no numbers.
    kv = torch.full((LAYER + 1, world.pool, native.page_bytes(form)), 0x7F, dtype=torch.uint8)
    kv[:, :, -4 * 2 * world.kv_heads * world.page_size :] = 0xFF
    reference = Rounded(world.empty())
    reference.code = code
    return [reference, CpuAttention(native, kv, form, world.heads, threads=2)]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("page_size", [1, 4, 16, 32])
def test_a_random_tree_of_rows(page_size: int, dtype: torch.dtype, code: Code):
    for seed in range(3):
        world = World(page_size, dtype=dtype, seed=seed)
        world.tree([], 2)
        world.row([], 150, 90)
        expected, actual = world.attend(coded(world, code))
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(actual.float(), expected.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("code", CODES)
def test_thirty_two_sharers(code: Code):
    world = World(16, 9, 3, 64, torch.bfloat16)
    shared = world.pages(40)
    for n in range(32):
        world.row(shared, 1 + n, 1)
    expected, actual = world.attend(coded(world, code))
    torch.testing.assert_close(actual.float(), expected.float(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("code", CODES)
def test_a_vector_comes_back_within_half_a_step_of_its_own_scale(code: Code):
    vectors = torch.randn(50, 64) * torch.logspace(-20, 20, 50)[:, None]
    codes, scales = quantize(vectors, code)
    error = (dequantize(codes, scales) - vectors).abs()
    step = scales if code == "int8" else vectors.abs().amax(-1) / 14
    assert (error <= step[:, None] / 2 * 1.001).all()
    assert codes.float().abs().max() == LARGEST[code]


@pytest.mark.parametrize("code", CODES)
def test_nothing_is_kept_as_nothing_and_what_is_no_number_stays_none(code: Code):
    codes, scales = quantize(torch.zeros(2, 16), code)
    assert torch.equal(dequantize(codes, scales), torch.zeros(2, 16))
    world = World(16, 2, 1, 16)
    world.row([], 5, 5)
    native = coded(world, code)[1]
    native.begin(paged_batch(StepPlan(1, world.rows), 16))
    key = world.random(5, 1, 16)
    key[3, 0, 7] = math.nan
    native.append(LAYER, key, world.random(5, 1, 16))
    output = native.run(LAYER, world.random(5, 2, 16), scale=0.25)
    assert output[:3].isfinite().all()
    assert output[3:].isnan().all()
