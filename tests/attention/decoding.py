"""Random steps in which every row decodes."""

from __future__ import annotations

import random
from array import array

from radixserve.attention.arrays import PagedBatch, paged_batch
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack


def decoding_rows(
    chance: random.Random, rows: int, *, page_size: int, pages: int, longest: int
) -> list[Row]:
    """Rows with contexts of up to ``longest`` tokens in pages 1 to ``pages``, which they share as
    it happens; the pages that they write to are their own."""
    own = chance.sample(range(1, pages), rows)
    others = [page for page in range(1, pages) if page not in own]
    made = []
    for row, last in enumerate(own):
        start = chance.randrange(longest)
        read = chance.choices(others, k=start // page_size)
        token = pack([chance.randrange(250)])
        made.append(Row(str(row), token, start, array("i", [*read, last]), SamplingParams()))
    return made


def step(rows: list[Row], page_size: int) -> PagedBatch:
    return paged_batch(StepPlan(1, rows, decoding=len(rows)), page_size)
