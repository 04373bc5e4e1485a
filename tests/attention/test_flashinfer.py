"""The FlashInfer backend against the reference, with a stand-in for FlashInfer and for the GPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from radixserve.attention.arrays import paged_batch
from radixserve.attention.cascade import CascadeCost
from radixserve.attention.flashinfer import ALWAYS, FlashInferAttention
from radixserve.attention.reference import ReferenceAttention
from radixserve.errors import ConfigError
from radixserve.scheduling.plan import StepPlan
from tests.attention.fake_device import FakeDevice
from tests.attention.fake_flashinfer import FakeFlashInfer
from tests.attention.fake_kernels import attend, merge
from tests.attention.test_cpu import LAYER, World

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


@pytest.mark.parametrize("page_size", [1, 16, 32])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("together", [True, False])
def test_a_random_tree_of_rows(page_size: int, depth: int, together: bool):
    merged = False
    for seed in range(3):
        each = world(page_size, seed=seed)
        each.tree([], depth)
        for _ in range(each.chance.randrange(3)):
            own = each.chance.randrange(1, 200)
            each.row([], own, each.chance.randrange(1, own + 1))
        each.chance.shuffle(each.rows)
        library = check(each, together=together)
        merged |= bool(library.named("merge_state_in_place"))
    assert merged == together


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


def read(library: FakeFlashInfer) -> int:
    """Pages that the kernels read in the last step."""
    last = {
        name: kwargs["paged_kv_indices" if name.startswith(PAGED) else "indices"]
        for name, _, kwargs in library.calls
        if name.endswith(".plan")
    }
    return sum(len(indices) for indices in last.values())


def test_nested_groups_are_read_once_each():
    each = world(16)
    trunk = each.pages(10)
    for _ in range(3):
        branch = trunk + each.pages(6)
        for own in (3, 30):
            each.row(branch, own, 1)
    library = check(each)
    assert read(library) == 10 + 3 * 6 + 3 * (1 + 2)
    (outer, inner) = library.named("merge_state_in_place")
    # The trunk is everyone's and merges as it is; so do the branches, which are stacked behind it.
    assert outer["mask"] is None
    assert inner["mask"] is None


def test_rows_that_have_no_part_at_a_level_are_left_out_of_its_merge():
    each = world(16)
    trunk = each.pages(10)
    each.row(trunk, 5, 1)
    branch = trunk + each.pages(6)
    each.row(branch, 5, 1)
    each.row([], 70, 1)
    each.row(branch, 7, 1)
    library = check(each)
    masks = [call["mask"].tolist() for call in library.named("merge_state_in_place")]
    assert masks == [[1, 1, 0, 1], [0, 1, 0, 1]]


def test_sharing_is_left_alone_where_it_does_not_pay_or_is_turned_off():
    for how in ({"cost": NEVER}, {"cost": None}, {"together": False}):
        each = world(16)
        shared = each.pages(5)
        for own in (3, 30):
            each.row(shared, own, 1)
        library = check(each, **how)
        assert not library.named("merge_state_in_place")
        assert read(library) == 2 * 5 + 1 + 2


def test_heads_too_many_to_merge_are_read_apart():
    each = world(16, heads=72, kv_heads=8, dim=128)
    shared = each.pages(5)
    for own in (3, 30):
        each.row(shared, own, 1)
    backend = flashinfer(each)
    backend.begin(paged_batch(StepPlan(1, each.rows), 16))
    backend.run(LAYER, each.random(2, 72, 128), scale=1.0)
    assert not backend._library.named("merge_state_in_place")


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


def test_a_log_sum_exp_to_base_2_is_what_is_merged():
    """The stand-in's own arithmetic: two halves merged are the whole."""
    each = world(4)
    kv, query = each.random(6, 2, 4, 2, 64), each.random(3, 6, 64)

    def over(pages: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = torch.empty_like(query), torch.empty(3, 6)
        arrays = [torch.tensor(values) for values in ([0, 3], [0, len(pages)], pages, [4])]
        attend(query, kv, *arrays, False, 0.125, 0.0, out, lse)
        return out, lse

    whole, total = over([0, 1, 2, 3, 4])
    some, others = over([0, 1, 2]), over([3, 4])
    merge(*some, *others, None)
    torch.testing.assert_close(some[0], whole, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(some[1], total)
    assert math.isfinite(float(total.sum()))
