"""The kernels of the GPU are their torch references: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from radixserve.kernels.kv_append import append_fp8, append_fp8_in_torch
from radixserve.kernels.page_copy import copy_pages_in_torch

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.gpu),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.float8_e4m3fn]
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
HAS_GPU = torch.cuda.is_available()

# The interpreter computes with numpy, which warns of a NaN.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cpu" and HAS_GPU:
        pytest.skip("the kernels are compiled here, not interpreted")
    if request.param == "cuda" and not HAS_GPU:
        pytest.skip("there is no GPU")
    return request.param


def kernels(name: str) -> ModuleType:
    """A module of ``radixserve.kernels.triton``; interpreted where there is no GPU."""
    if not HAS_GPU:
        os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    return __import__(f"radixserve.kernels.triton.{name}", fromlist=[name])


def garbage(shape: tuple[int, ...], dtype: torch.dtype, device: str, seed: int = 0) -> torch.Tensor:
    """Any bits, NaN among them."""
    generator = torch.Generator().manual_seed(seed)
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    bits = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return bits.to(device).view(dtype).view(shape)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


# Copies of pages


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("page", [(2, 4, 3, 8), (2, 16, 2, 72), (2, 3, 1, 5), (130,)], ids=str)
def test_pages_are_copied_as_torch_copies_them(
    device: str, dtype: torch.dtype, page: tuple[int, ...]
):
    made = kernels("page_copy")
    kv = garbage((3, 9, *page), dtype, device)
    expected = kv.clone()
    copies = [(1, 2), (1, 3), (7, 8), (5, 0)]
    copy_pages_in_torch(expected, copies)
    made.copy_pages(kv, copies)
    assert same_bits(kv, expected)


@pytest.mark.parametrize("seed", range(8))
def test_copies_that_depend_on_one_another_keep_their_order(device: str, seed: int):
    made = kernels("page_copy")
    dice = random.Random(seed)
    kv = garbage((2, 6, 2, 2, 1, 4), torch.bfloat16, device, seed)
    expected = kv.clone()
    copies = [tuple(dice.sample(range(6), 2)) for _ in range(12)]
    copy_pages_in_torch(expected, copies)
    made.copy_pages(kv, copies)
    assert same_bits(kv, expected)


def test_a_chain_a_swap_and_a_second_write_each_begin_a_launch_of_their_own():
    made = kernels("page_copy")
    independent = [(1, 2), (1, 3), (4, 5)]
    assert list(made.waves(independent)) == [(0, 3)]
    assert list(made.waves([(1, 2), (2, 3)])) == [(0, 1), (1, 2)]
    assert list(made.waves([(1, 2), (3, 1)])) == [(0, 1), (1, 2)]
    assert list(made.waves([(1, 2), (3, 2)])) == [(0, 1), (1, 2)]
    assert list(made.waves([])) == []


def test_within_a_launch_the_order_does_not_matter():
    made = kernels("page_copy")
    dice = random.Random(7)
    launches = []
    for _ in range(200):
        copies = [tuple(dice.sample(range(8), 2)) for _ in range(dice.randrange(12))]
        expected, shuffled, at_once = list(range(8)), list(range(8)), list(range(8))
        for source, target in copies:
            expected[target] = expected[source]
        launches.append(len(list(made.waves(copies))))
        for first, end in made.waves(copies):
            for source, target in dice.sample(copies[first:end], end - first):
                shuffled[target] = shuffled[source]
            read = [at_once[source] for source, _ in copies[first:end]]
            for (_, target), page in zip(copies[first:end], read, strict=True):
                at_once[target] = page
        assert shuffled == at_once == expected
    assert max(launches) > 3


def test_pages_within_a_larger_memory_are_copied_in_place(device: str):
    made = kernels("page_copy")
    memory = garbage((4, 12, 2, 4, 3, 8), torch.bfloat16, device)
    expected = memory.clone()
    copy_pages_in_torch(expected[1:3, 2:10:2], [(0, 3), (1, 2)])
    made.copy_pages(memory[1:3, 2:10:2], [(0, 3), (1, 2)])
    assert same_bits(memory, expected)


def test_heads_may_come_before_tokens_in_memory(device: str):
    made = kernels("page_copy")
    memory = garbage((2, 5, 2, 3, 4, 8), torch.bfloat16, device)
    kv, expected = memory.transpose(3, 4), memory.clone()
    copy_pages_in_torch(expected, [(4, 1)])
    made.copy_pages(kv, [(4, 1)])
    assert same_bits(memory, expected)


def test_a_page_with_holes_is_refused(device: str):
    made = kernels("page_copy")
    kv = garbage((2, 5, 2, 3, 4, 8), torch.bfloat16, device)[..., :4]
    with pytest.raises(ValueError, match="not one run"):
        made.copy_pages(kv, [(1, 2)])


# FP8 keys and values


def test_every_number_of_16_bits_has_the_code_that_torch_gives_it(device: str):
    made = kernels("kv_append")
    for dtype in (torch.bfloat16, torch.float16):
        bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
        numbers = bits.view(dtype).view(256, 1, 256).to(device)
        pages, offsets = torch.arange(256, device=device), torch.zeros(256, dtype=torch.int64)
        offsets = offsets.to(device)
        kv = torch.zeros(256, 2, 1, 1, 256, dtype=torch.float8_e4m3fn, device=device)
        expected = kv.clone()
        append_fp8_in_torch(expected, numbers, -numbers, pages, offsets, 1.0, 1.0)
        made.append_fp8(kv, numbers, -numbers, pages, offsets, 1.0, 1.0)
        finite = ~expected.float().isnan()
        assert torch.equal(kv.float().isnan(), ~finite)
        wrong = (kv.view(torch.uint8) != expected.view(torch.uint8)) & finite
        assert not wrong.any()


def test_halfway_between_two_codes_the_even_one_is_taken_and_next_to_it_the_nearer(device: str):
    made = kernels("kv_append")
    codes = torch.arange(0x7E, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    above = torch.arange(1, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    half = (codes + above) / 2
    infinity = torch.tensor(torch.inf)
    numbers = torch.cat([half, half.nextafter(infinity), half.nextafter(-infinity), -half])
    numbers = numbers.view(1, 1, -1).to(device)
    kv = torch.zeros(1, 2, 1, 1, numbers.numel(), dtype=torch.float8_e4m3fn, device=device)
    expected, zero = kv.clone(), torch.zeros(1, dtype=torch.int64, device=device)
    append_fp8_in_torch(expected, numbers, numbers, zero, zero, 1.0, 1.0)
    made.append_fp8(kv, numbers, numbers, zero, zero, 1.0, 1.0)
    assert same_bits(kv, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_tokens_are_scaled_and_written_to_their_slots_and_nowhere_else(
    device: str, dtype: torch.dtype, ids: torch.dtype, seed: int
):
    made = kernels("kv_append")
    dice = random.Random(seed)
    tokens, heads, dim, size = dice.choice([(1, 1, 8, 4), (7, 2, 16, 4), (9, 3, 20, 5)])
    generator = torch.Generator().manual_seed(seed)
    fused = 300 * torch.randn(tokens, heads * dim * 3, generator=generator)
    fused = fused.to(dtype).to(device)  # q, k and v as one product leaves them: not contiguous
    key, value = (fused[:, at * heads * dim :][:, : heads * dim] for at in (1, 2))
    key, value = key.view(tokens, heads, dim), value.view(tokens, heads, dim)
    slots = torch.tensor(dice.sample(range(6 * size), tokens), device=device, dtype=ids)
    kv = garbage((6, 2, size, heads, dim), torch.float8_e4m3fn, device, seed)
    expected = kv.clone()
    append_fp8_in_torch(expected, key, value, slots // size, slots % size, 0.37, 1.7)
    made.append_fp8(kv, key, value, slots // size, slots % size, 0.37, 1.7)
    assert same_bits(kv, expected)


def test_a_layer_of_many_and_heads_before_tokens_are_written_in_place(device: str):
    made = kernels("kv_append")
    memory = garbage((3, 4, 2, 2, 4, 8), torch.float8_e4m3fn, device)  # heads before slots
    expected = memory.clone()
    vectors = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(5)).to(device)
    pages, offsets = torch.tensor([[1, 3, 1], [0, 2, 3]], device=device)
    for target, append in ((expected, append_fp8_in_torch), (memory, made.append_fp8)):
        append(target[1].transpose(2, 3), vectors, -vectors, pages, offsets, 0.01, 0.02)
    assert same_bits(memory, expected)


def test_a_step_without_tokens_writes_nothing(device: str):
    made = kernels("kv_append")
    kv = garbage((2, 2, 4, 1, 8), torch.float8_e4m3fn, device)
    before, none = kv.clone(), torch.empty(0, dtype=torch.int64, device=device)
    made.append_fp8(kv, torch.empty(0, 1, 8), torch.empty(0, 1, 8), none, none, 1.0, 1.0)
    assert same_bits(kv, before)


def test_what_does_not_fit_into_the_range_is_its_end_and_nan_stays_nan():
    kv = torch.zeros(1, 2, 1, 1, 4, dtype=torch.float8_e4m3fn)
    vector = torch.tensor([[[1e9, -torch.inf, torch.nan, 500.0]]])
    zero = torch.zeros(1, dtype=torch.int64)
    append_fp8(kv, vector, vector, zero, zero, key_scale=1.0, value_scale=2.0)
    key, value = kv.float().flatten(2)[0].tolist()
    assert key[:2] == [448.0, -448.0]
    assert key[2] != key[2]
    assert (key[3], value[3]) == (448.0, 256.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_a_scale_that_is_not_above_zero_is_refused(scale: float):
    kv = torch.zeros(1, 2, 1, 1, 4, dtype=torch.float8_e4m3fn)
    vector, zero = torch.zeros(1, 1, 4), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="above 0"):
        append_fp8(kv, vector, vector, zero, zero, key_scale=scale, value_scale=1.0)


@pytest.mark.parametrize("fault", ["pages", "heads", "dtypes", "kv"])
def test_arguments_that_do_not_belong_together_are_refused(fault: str):
    dtype = torch.bfloat16 if fault == "kv" else torch.float8_e4m3fn
    kv = torch.zeros(1, 2, 1, 1, 4, dtype=dtype)
    key = torch.zeros(1, 2 if fault == "heads" else 1, 4)
    value = torch.zeros(1, 1, 4, dtype=torch.float16 if fault == "dtypes" else torch.float32)
    zero = torch.zeros(1, dtype=torch.int64)
    pages = zero.short() if fault == "pages" else zero
    with pytest.raises(ValueError, match=r"wanted|alike"):
        append_fp8(kv, key, value, pages, zero, key_scale=1.0, value_scale=1.0)


def test_nothing_imports_triton_before_a_kernel_is_used():
    code = (
        "import sys, torch; from radixserve.kernels import kv_append, page_copy;"
        "page_copy.copy_pages(torch.zeros(1, 3, 4), [(1, 2)]); print('triton' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
