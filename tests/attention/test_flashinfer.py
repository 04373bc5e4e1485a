"""The FlashInfer backend against the reference, with a stand-in for FlashInfer and for the GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixserve.attention.arrays import paged_batch
from radixserve.attention.flashinfer import FlashInferAttention
from radixserve.attention.reference import ReferenceAttention
from radixserve.errors import ConfigError
from radixserve.scheduling.plan import StepPlan
from tests.attention.fake_device import FakeDevice
from tests.attention.fake_flashinfer import FakeFlashInfer
from tests.attention.flashinfer_world import (
    DECODE,
    PAGED,
    TOLERANCE,
    check,
    coded,
    flashinfer,
    world,
)
from tests.attention.world import LAYER

MIXES = {
    "one token alone": [(1, 1)],
    "a prefill": [(45, 45)],
    "a chunk after a cached prefix": [(90, 33)],
    "decode rows of all lengths": [(n, 1) for n in (1, 2, 15, 16, 17, 32, 33, 100)],
    "a chunk before, between and behind decode rows": [(40, 3), (9, 1), (50, 50), (33, 1), (7, 2)],
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
@pytest.mark.parametrize("page_size", [1, 16, 32])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_batches_of_every_kind(mix: list[tuple[int, int]], page_size: int, dtype: torch.dtype):
    each = world(page_size, dtype=dtype)
    for own, new in mix:
        each.row([], own, new)
    check(each)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(6, 2, 64), (4, 4, 64), (8, 1, 128), (8, 2, 64), (4, 2, 256)]
)
def test_heads_of_many_forms(heads: int, kv_heads: int, dim: int):
    each = world(16, heads=heads, kv_heads=kv_heads, dim=dim)
    shared = each.pages(4)
    for own in (1, 16, 17):
        each.row(shared, own, 1)
    library = check(each)
    made = library.named(f"{DECODE}.__init__")
    assert {call["use_tensor_cores"] for call in made} == {heads // kv_heads >= 4}


@pytest.mark.parametrize("rows", [[(100, 1), (30, 1)], [(100, 1), (30, 20)]])
def test_scores_are_bent_by_a_soft_cap(rows: list[tuple[int, int]]):
    each = world(16)
    shared = each.pages(5)
    for own, new in rows:
        each.row(shared, own, new)
    check(each, soft_cap=2.0)


def test_layers_of_one_step_may_differ_in_scale_and_soft_cap():
    each = world(16)
    shared = each.pages(5)
    for own in (3, 30, 31):
        each.row(shared, own, 1)
    reference, backend = ReferenceAttention(each.empty()), flashinfer(each)
    each.attend([reference, backend])
    query = each.random(3, each.heads, each.dim)
    for scale, soft_cap in [(0.1, None), (0.3, 2.0), (0.1, 2.0), (0.3, None), (0.1, None)] * 2:
        expected, actual = (
            one.run(LAYER, query, scale=scale, soft_cap=soft_cap) for one in (reference, backend)
        )
        torch.testing.assert_close(actual, expected, atol=3e-3, rtol=3e-3)


def test_a_step_is_planned_once_and_by_begin_from_its_second_time_on():
    each = world(16)
    shared = each.pages(5)
    for own in (3, 30):
        each.row(shared, own, 1)
    backend = flashinfer(each)
    each.attend([backend])
    library = backend._library
    library.calls.clear()
    backend.begin(paged_batch(StepPlan(3, each.rows), 16))
    planned = [name for name, _, _ in library.calls]
    assert planned == [f"{DECODE}.plan", f"{PAGED}.plan"]
    query = each.random(2, each.heads, each.dim)
    for _ in range(3):
        backend.run(LAYER, query, scale=each.dim**-0.5)
    assert not [name for name, _, _ in library.calls[2:] if name.endswith("plan")]


def test_only_steps_in_which_all_rows_decode_use_the_decode_kernel():
    for new, used in ((1, DECODE), (2, PAGED)):
        each = world(16)
        each.row([], 40, 1)
        each.row([], 50, new)
        library = check(each)
        assert {name for name, _, _ in library.calls if name.endswith(".run")} == {f"{used}.run"}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"dtype": torch.float32}, "queries of torch.float32"),
        ({"dim": 80}, "heads of 80 elements"),
        ({"heads": 5}, "5 heads over 2"),
    ],
)
def test_what_there_are_no_kernels_for_is_refused(how: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        flashinfer(world(16, **how))


def test_kv_and_scales_that_do_not_fit_are_refused():
    each = world(16)
    with pytest.raises(ConfigError, match=r"KV of torch\.float32"):
        flashinfer(each, kv=each.empty().float())
    with pytest.raises(ConfigError, match=r"KV of torch\.float8_e5m2"):
        flashinfer(each, kv=coded(each).view(torch.float8_e5m2))
    with pytest.raises(ValueError, match="2 pairs"):
        flashinfer(each, kv=coded(each), scales=[(1.0, 1.0)] * 3)
    with pytest.raises(ValueError, match="positive"):
        flashinfer(each, kv=coded(each), scales=[(1.0, 0.0)])


def test_a_step_beyond_its_size_is_refused_and_the_workspace_fits_the_largest():
    device, each = FakeDevice(), world(16)
    backend = flashinfer(each, device)
    assert device.workspaces == [384 << 20]
    large = FakeDevice()
    FlashInferAttention(
        each.empty(),
        32,
        query_dtype=each.dtype,
        most_tokens=16384,
        library=FakeFlashInfer(large),
        device=large,
    )
    assert large.workspaces == [16384 * 32 * 64 * 16]
    backend._most_tokens = 10
    each.row([], 11, 11)
    with pytest.raises(ValueError, match="11 tokens: 10 fit"):
        backend.begin(paged_batch(StepPlan(1, each.rows), 16))


def test_a_layer_before_the_first_step_is_refused():
    each = world(16)
    with pytest.raises(RuntimeError, match="begin"):
        flashinfer(each).run(LAYER, each.random(1, each.heads, each.dim), scale=1.0)


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "flashinfer", None)
    each = world(16)
    with pytest.raises(ConfigError, match=r"radixserve\[gpu\]"):
        FlashInferAttention(
            each.empty(), 6, query_dtype=each.dtype, most_tokens=1, device=FakeDevice()
        )
