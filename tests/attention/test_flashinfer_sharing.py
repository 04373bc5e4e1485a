"""What rows share is read once, level by level, and merged to what the reference gives."""

from __future__ import annotations

import math

import pytest
import torch

from radixserve.attention.arrays import paged_batch
from radixserve.scheduling.plan import StepPlan
from tests.attention.fake_flashinfer import FakeFlashInfer
from tests.attention.fake_kernels import attend, merge
from tests.attention.flashinfer_world import NEVER, PAGED, check, flashinfer, world
from tests.attention.world import LAYER


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
