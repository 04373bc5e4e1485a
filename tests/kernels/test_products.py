"""Products with packed weights are those of torch, whatever the form and the processor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from radixserve.kernels.cpu.weights import Arena
from radixserve.kernels.kv_codes import dequantize, quantize
from tests.kernels.instructions import HERE, OLDER, made_for

Multiply = Callable[[torch.Tensor, torch.Tensor, bool], torch.Tensor]
"""Rows [R, depth] times a weight [columns, depth], which is quantized or not: [R, columns]."""

SIZES = [(1, 1, 2), (1, 33, 48), (2, 64, 90), (4, 70, 16), (8, 31, 66), (12, 96, 130), (13, 5, 34),
         (40, 100, 64), (97, 32, 18)]  # fmt: skip
"""Rows, columns, depth."""


@pytest.fixture(scope="module", params=[HERE, *OLDER])
def multiply(request: pytest.FixtureRequest) -> Multiply:
    native = made_for(request.param)

    def multiply(rows: torch.Tensor, weight: torch.Tensor, int8: bool) -> torch.Tensor:
        dtype = torch.int8 if int8 else weight.dtype
        arena = Arena(native.packed_bytes(*weight.shape, dtype))
        return native.multiply(rows, native.pack(weight, arena, int8=int8), threads=2)

    return multiply


@pytest.mark.parametrize("int8", [False, True], ids=["whole", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("rows", "columns", "depth"), SIZES)
def test_a_product_is_that_of_torch(
    multiply: Multiply, rows: int, columns: int, depth: int, dtype: torch.dtype, int8: bool
):
    seeded = torch.Generator().manual_seed(rows * columns + depth)
    a = torch.randn(rows, depth, generator=seeded).to(dtype)
    weight = torch.randn(columns, depth, generator=seeded).to(dtype)
    used = dequantize(*quantize(weight, "int8")) if int8 else weight.float()
    wanted = a.double() @ used.double().T
    torch.testing.assert_close(multiply(a, weight, int8).double(), wanted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_each_code_of_int8_is_multiplied_with_as_it_is(multiply: Multiply, dtype: torch.dtype):
    codes = torch.arange(-127, 128).repeat(2, 1).T.contiguous()
    weight = torch.full((255, 4), 127.0)  # so that all scales are 1
    weight[:, 1:3] = codes
    a = torch.eye(4)[1:3].to(dtype)
    assert torch.equal(multiply(a, weight.to(dtype), True), codes.T.float())


@pytest.mark.parametrize("int8", [False, True], ids=["whole", "int8"])
def test_a_row_does_not_depend_on_how_many_there_are(multiply: Multiply, int8: bool):
    seeded = torch.Generator().manual_seed(1)
    a = torch.randn(40, 66, generator=seeded).bfloat16()
    weight = torch.randn(70, 66, generator=seeded).bfloat16()
    together = multiply(a, weight, int8)
    for count in (1, 3, 8, 12, 13, 25):
        assert torch.equal(multiply(a[:count].contiguous(), weight, int8), together[:count])
