"""The native kernels against the reference, on random trees of shared pages."""

from __future__ import annotations

import math
from array import array

import pytest
import torch

from radixserve.attention import cpu
from radixserve.attention.arrays import paged_batch
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.tokens import pack
from tests.attention.world import LAYER, TOLERANCE, World

pytestmark = pytest.mark.skipif(
    cpu.kernels() is None, reason="there is no C++ compiler to make the native kernels with"
)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("page_size", [1, 4, 16, 20, 32])
@pytest.mark.parametrize("together", [True, False])
def test_a_random_tree_of_rows(page_size: int, dtype: torch.dtype, together: bool):
    for seed in range(4):
        world = World(page_size, dtype=dtype, seed=seed)
        world.tree([], 3)
        for _ in range(world.chance.randrange(3)):
            own = world.chance.randrange(1, 300)
            world.row([], own, world.chance.randrange(1, own + 1))
        world.check(together=together)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 32), (8, 1, 128), (14, 2, 80), (3, 1, 16)]
)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_heads_of_many_forms(heads: int, kv_heads: int, dim: int, dtype: torch.dtype):
    world = World(16, heads, kv_heads, dim, dtype)
    shared = world.pages(9)
    for own in (1, 16, 17, 40):
        world.row(shared, own, 1)
    world.row([], 700, 1)
    world.row(shared, 130, 121)
    world.check()


def test_thirty_two_sharers_read_the_shared_pages_once():
    world = World(16, 9, 3, 64, torch.bfloat16)
    shared = world.pages(125)
    for n in range(32):
        world.row(shared, 1 + n % 40, 1)
    native = world.check()
    apart, together = native.read
    own = sum(1 + n % 40 for n in range(32))
    assert (apart, together) == (32 * 2000 + own, 2000 + own)


def test_nested_groups_follow_the_tree():
    world = World(16)
    trunk = world.pages(10)
    for _ in range(3):
        branch = trunk + world.pages(6)
        for own in (3, 30):
            world.row(branch, own, 1)
    native = world.check()
    assert native.read[1] == 160 + 3 * 96 + 3 * 33


def test_rows_that_share_little_are_not_grouped():
    world = World(16)
    shared = world.pages(3)
    for own in (5, 6):
        world.row(shared, own, 1)
    native = world.check()
    assert native.read == (2 * 48 + 11, 2 * 48 + 11)


@pytest.mark.parametrize("new", [1, 5, 6, 7, 33, 64, 65, 200])
@pytest.mark.parametrize("start", [0, 1, 15, 16, 500, 513])
def test_chunks_of_a_prefill(start: int, new: int):
    world = World(16)
    world.row([], start + new, new)
    world.check()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_scores_are_bent_by_a_soft_cap(dtype: torch.dtype):
    world = World(16, dtype=dtype)
    world.row([], 100, 1)
    world.row([], 30, 20)
    world.check(soft_cap=2.0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_without_groups_a_row_does_not_depend_on_its_batch_or_its_chunks(dtype: torch.dtype):
    alone = World(16, dtype=dtype)
    alone.row([], 1100, 1)
    (_, expected) = alone.attend(alone.backends(together=False))
    crowded = World(16, dtype=dtype)
    crowded.row([], 1100, 1)
    native = crowded.backends(together=False, threads=1)[1]
    kv_shape = (crowded.kv_heads, crowded.dim)
    past = [crowded.random(1099, *kv_shape) for _ in range(2)]
    fresh = [crowded.random(1, *kv_shape) for _ in range(2)]
    query = crowded.random(1, crowded.heads, crowded.dim)
    row = crowded.rows[0]
    others = [Row("o", pack(range(n)), 0, array("i", crowded.pages(4))) for n in (1, 64, 3)]
    # The past in order of its pages, as World.attend fills it.
    native.begin(paged_batch(StepPlan(1, [Row("f", pack(range(1099)), 0, row.pages)]), 16))
    native.append(LAYER, *past)
    whole = Row("r", pack(range(100)), 1000, row.pages)
    native.begin(paged_batch(StepPlan(2, [others[0], whole, *others[1:]]), 16))
    last = [torch.cat([each[1000:], new]) for each, new in zip(past, fresh, strict=True)]
    noise = [crowded.random(n, *kv_shape) for n in (1, 67) for _ in range(2)]
    native.append(
        LAYER,
        torch.cat([noise[0], last[0], noise[2]]),
        torch.cat([noise[1], last[1], noise[3]]),
    )
    queries = crowded.random(168, crowded.heads, crowded.dim)
    queries[100] = query[0]
    output = native.run(LAYER, queries, scale=1 / math.sqrt(crowded.dim))
    assert torch.equal(output[100], expected[0])
