"""Products with packed weights are those of torch, whatever the form and the processor."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Callable

import pytest
import torch

from radixserve.attention.cpu import kernels
from radixserve.kernels.cpu import build
from radixserve.kernels.cpu.library import CpuKernels
from radixserve.kernels.cpu.weights import Arena
from radixserve.kernels.kv_codes import dequantize, quantize

Multiply = Callable[[torch.Tensor, torch.Tensor, bool], torch.Tensor]
"""Rows [R, depth] times a weight [columns, depth], which is quantized or not: [R, columns]."""

PRODUCTS = """
#include "matrix.h"
using namespace radix;
template <class T>
void multiply(const void* a, int64_t rows, const void* from, int64_t columns, int64_t depth,
              bool int8, float* out) {
  const int64_t stride = panels(columns) * PANEL;
  std::vector<T> data(stride * depth);
  std::vector<float> scales(stride);
  const T* weight = static_cast<const T*>(from);
  if (int8)
    pack_codes(weight, columns, depth, reinterpret_cast<uint8_t*>(data.data()), scales.data());
  else pack(weight, columns, depth, PAIR<T>, data.data());
  const Packed<T> packed{data.data(), int8 ? scales.data() : nullptr, columns, depth};
  Pool pool(1);
  pool.run([&](int) {
    product(pool, static_cast<const T*>(a), depth, rows, packed,
            [&](int64_t row, int64_t column, f32x16 values) {
              store(out + row * stride + column, values);
            });
  });
}
extern "C" void multiply_float(const void* a, int64_t rows, const void* b, int64_t columns,
                               int64_t depth, int64_t int8, float* out) {
  multiply<float>(a, rows, b, columns, depth, int8 != 0, out);
}
extern "C" void multiply_bf16(const void* a, int64_t rows, const void* b, int64_t columns,
                              int64_t depth, int64_t int8, float* out) {
  multiply<bf16>(a, rows, b, columns, depth, int8 != 0, out);
}
"""
OLDER = {
    "avx512 without lookups of bytes": ("-mno-avx512vbmi",),
    "avx2": ("-mno-avx512f",),
}
SIZES = [(1, 1, 2), (1, 33, 48), (2, 64, 90), (4, 70, 16), (8, 31, 66), (12, 96, 130), (13, 5, 34),
         (40, 100, 64), (97, 32, 18)]  # fmt: skip
"""Rows, columns, depth."""


@pytest.fixture(scope="module", params=["this processor", *OLDER])
def multiply(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Multiply:
    native = kernels()
    if native is None:
        pytest.skip("there is no C++ compiler to make the native kernels with")
    if request.param == "this processor":
        return as_built(native)
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("what it leaves out are instructions of x86")
    folder = tmp_path_factory.mktemp("products")
    (folder / "products.cpp").write_text(PRODUCTS)
    compiler = next(found for name in build.COMPILERS if (found := shutil.which(name)))
    flags = [*build.FLAGS, "-O1", f"-I{build.SOURCES}", *OLDER[request.param]]
    command = [compiler, *flags, "-o", "products.so", "products.cpp"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return with_library(ctypes.CDLL(str(folder / "products.so")))


def as_built(native: CpuKernels) -> Multiply:
    def multiply(rows: torch.Tensor, weight: torch.Tensor, int8: bool) -> torch.Tensor:
        dtype = torch.int8 if int8 else weight.dtype
        arena = Arena(native.packed_bytes(*weight.shape, dtype))
        return native.multiply(rows, native.pack(weight, arena, int8=int8), threads=2)

    return multiply


def with_library(library: ctypes.CDLL) -> Multiply:
    def multiply(rows: torch.Tensor, weight: torch.Tensor, int8: bool) -> torch.Tensor:
        columns, depth = weight.shape
        out = torch.empty(len(rows), -(-columns // 32) * 32)
        name = "multiply_float" if rows.dtype == torch.float32 else "multiply_bf16"
        getattr(library, name)(
            ctypes.c_void_p(rows.data_ptr()), ctypes.c_int64(len(rows)),
            ctypes.c_void_p(weight.data_ptr()), ctypes.c_int64(columns), ctypes.c_int64(depth),
            ctypes.c_int64(int8), ctypes.c_void_p(out.data_ptr()),
        )  # fmt: skip
        return out[:, :columns]

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
