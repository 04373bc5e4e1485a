"""Step plans become the paged arrays of FlashInfer's layout."""

from __future__ import annotations

import time
from array import array
from dataclasses import fields

import pytest

from radixserve.attention.arrays import PagedBatch, paged_batch
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack


def row(tokens: list[int], start: int, pages: list[int], *, samples: bool = True) -> Row:
    sampling = SamplingParams() if samples else None
    return Row("r", pack(tokens), start, array("i", pages), sampling)


def test_a_prefill_a_chunk_and_a_decode_row_stand_in_one_batch():
    rows = [
        row([10, 11, 12], 0, [7]),
        row([20, 21], 3, [5, 2, 9], samples=False),
        row([30], 8, [1, 8, 3]),
    ]
    batch = paged_batch(StepPlan(1, rows), 4)
    assert batch.qo_indptr.tolist() == [0, 3, 5, 6]
    assert batch.kv_indptr.tolist() == [0, 1, 3, 6]
    assert batch.kv_indices.tolist() == [7, 5, 2, 1, 8, 3]
    assert batch.last_page_len.tolist() == [3, 1, 1]
    assert batch.token_ids.tolist() == [10, 11, 12, 20, 21, 30]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 8]
    assert batch.append_pages.tolist() == [7, 7, 7, 5, 2, 3]
    assert batch.append_offsets.tolist() == [0, 1, 2, 3, 0, 0]
    assert batch.sample_rows.tolist() == [2, 5]
    int32 = (batch.qo_indptr, batch.kv_indptr, batch.kv_indices, batch.last_page_len)
    assert {str(each.dtype) for each in int32} == {"torch.int32"}


@pytest.mark.parametrize("decoding", [1, 2])
def test_rows_that_are_known_to_decode_give_the_arrays_that_they_would_give_unknown(decoding: int):
    rows = [
        row([30], 8, [1, 8, 3]),
        row([31], 3, [4]),
        row([10, 11, 12], 0, [7]),
        row([20, 21], 3, [5, 2, 9], samples=False),
    ]
    known = paged_batch(StepPlan(1, rows, decoding=decoding), 4)
    unknown = paged_batch(StepPlan(1, rows), 4)
    for field in fields(PagedBatch):
        assert str(getattr(known, field.name)) == str(getattr(unknown, field.name))


@pytest.mark.parametrize("context", [1, 3, 4, 5, 8])
def test_the_last_page_is_never_empty_and_spare_pages_are_cut(context: int):
    batch = paged_batch(StepPlan(1, [row([1], context - 1, [9, 8, 7, 6])]), 4)
    pages = batch.kv_indices.tolist()
    assert pages == [9, 8, 7, 6][: -(-context // 4)]
    assert (len(pages) - 1) * 4 + batch.last_page_len.item() == context


def test_a_plan_may_sample_nothing():
    batch = paged_batch(StepPlan(1, [row([1, 2], 0, [1], samples=False)]), 4)
    assert batch.sample_rows.tolist() == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "without rows"),
        ([row([1, 2], 3, [4])], "needs 2 pages and has 1"),
        ([row([], 3, [4])], "computes no token"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(rows: list[Row], message: str):
    with pytest.raises(ValueError, match=message):
        paged_batch(StepPlan(1, rows), 4)


def test_the_pages_may_grow_again_once_the_arrays_are_made():
    one = row([1], 0, [5])
    paged_batch(StepPlan(1, [one]), 4)
    one.pages.append(6)  # would raise BufferError if a view on them were kept


def test_the_arrays_are_made_from_bytes_and_not_from_lists():
    few, many = (
        StepPlan(1, [row([1], size * 16 - 1, list(range(1, size + 1))) for _ in range(256)])
        for size in (1, 256)
    )

    def cost(plan: StepPlan) -> float:
        spent = []
        for _ in range(20):
            begun = time.thread_time()
            paged_batch(plan, 16)
            spent.append(time.thread_time() - begun)
        return min(spent)

    # 65,536 page ids cost less than the 256 rows do; as lists they would cost 30 times as much.
    assert cost(many) < 5 * cost(few)
