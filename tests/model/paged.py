"""A model over pages, row by row."""

from __future__ import annotations

from array import array

import torch

from radixserve.attention.arrays import paged_batch
from radixserve.model.execution import Executable
from radixserve.model.kv_storage import KvStorage
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.model import tiny

PROMPT = [(37 * i * i + 11 * i + 5) % tiny.VOCABULARY for i in range(41)]


class Paged:
    """A loaded model over a pool of NaN, with sequences in scattered pages."""

    def __init__(self, model: Executable, page_size: int):
        self.page_size = page_size
        storage = KvStorage(model.geometry, 400, page_size, torch.device("cpu"))
        storage.kv.fill_(torch.nan)
        self.run = model.on(storage.kv)
        generator = torch.Generator().manual_seed(page_size)
        self.free = (1 + torch.randperm(399, generator=generator)).tolist()

    def pages(self, tokens: int) -> array[int]:
        return array("i", [self.free.pop() for _ in range(-(-tokens // self.page_size))])

    def logits(self, *chunks: tuple[list[int], int, array[int]]) -> torch.Tensor:
        """All logits of one step over (tokens, start, pages) of each row."""
        rows = [
            Row(str(i), pack(tokens), start, pages, SamplingParams())
            for i, (tokens, start, pages) in enumerate(chunks)
        ]
        batch = paged_batch(StepPlan(1, rows), self.page_size)
        batch.sample_rows = torch.arange(len(batch.token_ids))
        return self.run(batch)
