"""The reference, against attention written out token by token."""

from __future__ import annotations

import math
from array import array

import pytest
import torch

from radixserve.attention.arrays import PagedBatch, paged_batch
from radixserve.attention.reference import ReferenceAttention
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.tokens import pack

HEADS, KV_HEADS, DIM, PAGE = 6, 2, 8, 4


def naive(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, soft_cap: float | None = None
) -> torch.Tensor:
    """Attention of the last len(query) tokens over all of key and value, one by one."""
    output = torch.empty_like(query)
    for token in range(len(query)):
        seen = len(key) - len(query) + token + 1
        for head in range(query.shape[1]):
            shared = head * key.shape[1] // query.shape[1]
            scores = key[:seen, shared] @ query[token, head] / math.sqrt(query.shape[2])
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            output[token, head] = scores.softmax(0) @ value[:seen, shared]
    return output


class Pool:
    """Rows with random contexts in scattered pages of a pool that is otherwise NaN."""

    def __init__(self, shape: list[tuple[int, int]], dtype: torch.dtype = torch.float32):
        """``shape`` has (tokens in the cache, new tokens) of each row."""
        generator = torch.Generator().manual_seed(1)
        pages = sum(-(-(start + count) // PAGE) for start, count in shape) + 3
        self.kv = torch.full((2, pages, 2, PAGE, KV_HEADS, DIM), math.nan, dtype=dtype)
        scattered = (1 + torch.randperm(pages - 1, generator=generator)).tolist()
        self.rows: list[Row] = []
        self.queries: list[torch.Tensor] = []
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        for start, count in shape:
            mine = [scattered.pop() for _ in range(-(-(start + count) // PAGE))]
            size = (start + count, KV_HEADS, DIM)
            key = torch.randn(size, generator=generator).to(dtype)
            value = torch.randn(size, generator=generator).to(dtype)
            for position in range(start):
                slot = (1, mine[position // PAGE], slice(None), position % PAGE)
                self.kv[slot] = torch.stack([key[position], value[position]])
            self.rows.append(Row("r", pack(range(count)), start, array("i", mine)))
            self.queries.append(torch.randn(count, HEADS, DIM, generator=generator).to(dtype))
            self.keys.append(key)
            self.values.append(value)

    def batch(self) -> PagedBatch:
        return paged_batch(StepPlan(1, self.rows), PAGE)

    def attend(self, soft_cap: float | None = None) -> list[torch.Tensor]:
        backend = ReferenceAttention(self.kv)
        backend.begin(self.batch())
        starts = [row.start for row in self.rows]
        new = [
            torch.cat([tensor[start:] for tensor, start in zip(tensors, starts, strict=True)])
            for tensors in (self.keys, self.values)
        ]
        backend.append(1, *new)
        scale = 1 / math.sqrt(DIM)
        output = backend.run(1, torch.cat(self.queries), scale=scale, soft_cap=soft_cap)
        return list(output.split([row.count for row in self.rows]))


SHAPES = {
    "one token alone": [(0, 1)],
    "a prefill": [(0, 11)],
    "a chunk after a cached prefix": [(6, 5)],
    "a chunk that ends with its page": [(3, 5)],
    "decode rows of all lengths": [(n, 1) for n in (1, 3, 4, 5, 17, 40)],
    "a mixed batch": [(0, 5), (7, 1), (9, 3), (30, 1), (2, 1), (8, 5)],
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_rows_see_their_own_past_and_nothing_else(
    shape: list[tuple[int, int]], soft_cap: float | None
):
    pool = Pool(shape)
    for output, *qkv in zip(
        pool.attend(soft_cap), pool.queries, pool.keys, pool.values, strict=True
    ):
        torch.testing.assert_close(output, naive(*qkv, soft_cap), atol=1e-5, rtol=1e-5)


def test_half_precision_loses_only_the_rounding_of_the_answer():
    pool = Pool(SHAPES["a mixed batch"], torch.bfloat16)
    for output, *qkv in zip(pool.attend(), pool.queries, pool.keys, pool.values, strict=True):
        assert output.dtype == torch.bfloat16
        expected = naive(*(each.float() for each in qkv))
        torch.testing.assert_close(output.float(), expected, atol=1e-2, rtol=1e-2)


def test_other_layers_are_left_alone():
    pool = Pool(SHAPES["a mixed batch"])
    pool.attend()
    assert pool.kv[0].isnan().all()


def test_decode_rows_of_like_length_are_computed_together():
    backend = ReferenceAttention(torch.zeros(1, 500, 2, PAGE, KV_HEADS, DIM))
    rows = [Row("r", pack([1]), 20 + n % 8, array("i", range(1, 9))) for n in range(64)]
    backend.begin(paged_batch(StepPlan(1, rows), PAGE))
    assert len(backend._groups) == 1
