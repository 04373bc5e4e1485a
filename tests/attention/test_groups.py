"""Shared page runs of random trees, against sets of prefixes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from radixserve.attention.arrays import PagedBatch, paged_batch
from radixserve.attention.cascade import CascadeCost, sharers
from radixserve.attention.flashinfer import ALWAYS
from radixserve.attention.groups import Level, cascade, shared_runs
from radixserve.scheduling.plan import StepPlan
from tests.attention.world import World
from tests.cache.cost import bytecodes


def rows_of(batch: PagedBatch) -> list[list[int]]:
    return cut(batch.kv_indices.numpy(), batch.kv_indptr.numpy())


def cut(pages: np.ndarray, indptr: np.ndarray) -> list[list[int]]:
    return [pages[a:b].tolist() for a, b in pairwise(indptr)]


def batch_of(world: World) -> PagedBatch:
    world.chance.shuffle(world.rows)
    return paged_batch(StepPlan(1, world.rows), world.page_size)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("seed", range(12))
def test_each_shared_page_is_read_once_and_each_row_gets_its_whole_context(
    seed: int, page_size: int
):
    world = World(page_size, seed=seed)
    world.tree([], 4)
    shared = [row.pages.tolist() for row in world.rows]
    world.row([], 100, 30)
    batch = batch_of(world)
    contexts = rows_of(batch)
    levels = shared_runs(batch, ALWAYS)
    assert levels, "a tree in which nothing is shared proves nothing: take another seed"
    found = cascade(batch, levels)
    runs = cut(found.kv_indices, found.kv_indptr)
    own = cut(found.own_indices, found.own_indptr)
    queries = np.arange(found.stacked) if found.queries is None else found.queries
    run_of = np.repeat(np.arange(len(runs)), np.diff(found.qo_indptr))
    tokens = batch.qo_indptr.tolist()
    for row, context in enumerate(contexts):
        count = tokens[row + 1] - tokens[row]
        stacked = np.flatnonzero(queries == tokens[row])
        mine = [page for run in run_of[stacked] for page in runs[run]]
        assert mine + own[row] == context
        assert count == 1 or not mine
        merged = [where(level, tokens[row]) for level in found.levels if sees(level, tokens[row])]
        assert merged == stacked.tolist()

    prefixes = {tuple(pages[:n]) for pages in shared for n in range(1, len(pages))}
    decoding = sum(len(pages) for pages in own) - len(contexts_of_chunks(batch))
    assert len(found.kv_indices) + decoding == len(prefixes) + len(shared)


def contexts_of_chunks(batch: PagedBatch) -> list[int]:
    """Pages of rows that compute more than one token."""
    return [
        page
        for pages, count in zip(rows_of(batch), batch.qo_indptr.diff().tolist(), strict=True)
        if count > 1
        for page in pages
    ]


def sees(level: Level, token: int) -> bool:
    return token < level.span and (level.mask is None or bool(level.mask[token]))


def where(level: Level, token: int) -> int:
    return level.first + token if level.places is None else int(level.places[token])


def test_rows_without_anything_in_common_have_no_runs():
    world = World(16)
    for own in (100, 200, 3):
        world.row([], own, 1)
    assert shared_runs(batch_of(world), ALWAYS) == []


def test_a_page_that_takes_a_new_token_is_never_shared():
    world = World(16)
    shared = world.pages(3)
    for _ in range(2):
        world.row(shared[:2], 16, 1)
        world.rows[-1].pages[-1] = shared[2]  # not even if two rows had the same one
    (level,) = shared_runs(batch_of(world), ALWAYS)
    assert [(run.first, run.end) for run in level] == [(0, 2)]


def test_pages_that_are_alike_only_further_on_are_not_shared():
    world = World(16)
    shared = world.pages(5)
    for _ in range(2):
        world.row(world.pages(1) + shared, 3, 1)
    assert shared_runs(batch_of(world), ALWAYS) == []


def test_a_run_that_does_not_pay_is_read_with_what_is_behind_it():
    world = World(16)
    trunk = world.pages(1)
    for _ in range(2):
        branch = trunk + world.pages(50)
        for own in (3, 30):
            world.row(branch, own, 1)
    dear = CascadeCost(level=0.0, row=100.0, read=1.0, compute=0.0)
    (level,) = shared_runs(batch_of(world), dear)
    assert [(len(run.rows), run.first, run.end) for run in level] == [(2, 0, 51)] * 2


def test_levels_that_do_not_pay_for_themselves_are_dropped_from_the_innermost_on():
    world = World(16)
    trunk = world.pages(50)
    for _ in range(2):
        branch = trunk + world.pages(5)
        for own in (3, 30):
            world.row(branch, own, 1)
    batch = batch_of(world)
    trunk_saves, branches_save = 3 * 50 * 16, 2 * 5 * 16
    for level, kept in ((0, 2), (branches_save, 1), (trunk_saves, 0)):
        cost = CascadeCost(level=level, row=0.0, read=1.0, compute=0.0)
        levels = shared_runs(batch, cost)
        assert len(levels) == kept
        if kept == 1:
            assert len(cascade(batch, levels).own_indices) == 4 * 5 + 2 * (1 + 2)


def test_the_batch_that_costs_are_measured_with_shares_all_but_the_last_pages():
    batch = sharers(5, 3, 16)
    (level,) = shared_runs(batch, ALWAYS)
    assert [(len(run.rows), run.first, run.end) for run in level] == [(5, 0, 3)]
    assert torch.equal(batch.last_page_len, torch.ones(5, dtype=torch.int32))


def test_finding_what_many_rows_share_goes_through_no_pages_one_by_one():
    costs = []
    for pages in (32, 512):
        batch = sharers(256, pages, 16)
        costs.append(bytecodes(lambda batch=batch: cascade(batch, shared_runs(batch, ALWAYS))))
    few, many = costs
    assert many < 1.2 * few
