"""Keys and values in float8 under static scales, as they are kept and as they are read."""

from __future__ import annotations

import math

import pytest
import torch

from radixserve.attention.arrays import paged_batch
from radixserve.attention.reference import ReferenceAttention
from radixserve.scheduling.plan import StepPlan
from tests.attention.flashinfer_world import (
    DECODE,
    FP8,
    TOLERANCE,
    Rounded,
    coded,
    flashinfer,
    rounded,
    world,
)
from tests.attention.world import LAYER


@pytest.mark.parametrize("new", [1, 20])
@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.125, 0.25), (0.01, 0.003)])
def test_kv_in_float8_is_scaled_by_us_when_it_is_kept_and_by_the_kernels_when_it_is_read(
    new: int, scales: tuple[float, float]
):
    each = world(16)
    shared = each.pages(5)
    for own in (3, 30):
        each.row(shared, own, 1)
    each.row([], 60, new)
    # Of all layers but this one the scales would give another answer.
    backend = flashinfer(each, kv=coded(each), scales=[(3.0, 5.0), scales])
    exact = ReferenceAttention(each.empty())
    coarse = Rounded(each.empty())
    coarse.used = scales
    expected, close, actual = each.attend([coarse, exact, backend])
    torch.testing.assert_close(actual, expected, atol=4e-3, rtol=4e-3)
    if scales[0] > 0.01:
        torch.testing.assert_close(actual, close, atol=0.1, rtol=0.1)
    calls = backend._library.named(".run")
    assert {(call["k_scale"], call["v_scale"]) for call in calls} == {scales}
    assert all(call["use_tensor_cores"] for call in backend._library.named(f"{DECODE}.__init__"))
    assert not backend._library.named("append_paged_kv_cache"), "FlashInfer's does not scale"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("new", [1, 20])
def test_the_reference_reads_the_very_arrays_that_flashinfer_gets(new: int, dtype: torch.dtype):
    each = world(16, dtype=dtype)
    shared = each.pages(5)
    for own in (3, 30):
        each.row(shared, own, 1)
    each.row([], 60, new)
    scales = [(3.0, 5.0), (0.01, 0.003)]
    backend = flashinfer(each, kv=coded(each), scales=scales)
    reference = ReferenceAttention(coded(each), scales)
    coarse = Rounded(each.empty())
    coarse.used = scales[LAYER]
    expected, actual, near = each.attend([reference, backend, coarse])
    assert torch.equal(backend.kv.view(torch.uint8), reference.kv.view(torch.uint8))
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(expected, near, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_what_is_kept_in_float8_is_rounded_once(dtype: torch.dtype):
    each, scale = world(16, dtype=dtype), 0.37
    each.row([], 16, 16)
    backend = flashinfer(each, kv=coded(each), scales=[(scale, scale)])
    backend.begin(paged_batch(StepPlan(1, each.rows), 16))
    key = each.random(16, each.kv_heads, each.dim)
    backend.append(LAYER, key, -key)
    kept = backend.kv[LAYER, each.rows[0].pages[0]].view(torch.uint8)
    assert torch.equal(kept[0], rounded(key, scale).view(torch.uint8))
    assert torch.equal(kept[1], rounded(-key, scale).view(torch.uint8))
    twice = (key / scale).to(FP8).view(torch.uint8)
    assert not torch.equal(kept[0], twice), "these numbers do not tell once from twice"


def test_what_is_kept_of_a_token_depends_on_no_other():
    alone, crowded = world(16), world(16)
    kept = []
    for each, before in ((alone, 0), (crowded, 7)):
        backend = flashinfer(each, kv=coded(each), scales=[(0.01, 0.02)])
        mine = torch.linspace(-3, 3, each.kv_heads * each.dim).view(1, each.kv_heads, each.dim)
        loud = torch.full((before, each.kv_heads, each.dim), 1e4)
        each.row([], before + 1, before + 1)
        key = torch.cat([loud, mine]).to(each.dtype)
        backend.begin(paged_batch(StepPlan(1, each.rows), 16))
        backend.append(LAYER, key, key)
        kept.append(backend.kv[LAYER, each.rows[0].pages[0], :, before].view(torch.uint8))
    assert torch.equal(*kept)


def test_what_float8_cannot_hold_is_kept_as_the_largest_that_it_can():
    each = world(16)
    each.row([], 2, 2)
    backend = flashinfer(each, kv=coded(each), scales=[(0.5, 0.5)])
    backend.begin(paged_batch(StepPlan(1, each.rows), 16))
    key = each.random(2, each.kv_heads, each.dim)
    key[0, 0, :3] = torch.tensor([60_000, -60_000, math.nan])
    backend.append(LAYER, key, key)
    kept = backend.kv[LAYER, each.rows[0].pages[0], 0, 0, 0, :3].float()
    assert kept[:2].tolist() == [448.0, -448.0]
    assert kept[2].isnan()
