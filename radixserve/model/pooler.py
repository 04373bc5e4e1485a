"""From the hidden states of prompts to one vector for each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch

from radixserve.attention.arrays import PagedBatch, paged_batch
from radixserve.model.sampler import NOT_A_NUMBER
from radixserve.scheduling.plan import Row, Sampled, StepPlan

States = Callable[[PagedBatch], torch.Tensor]
"""Hidden states, fp32 [S, hidden], of ``PagedBatch.sample_rows``; all KV is appended."""


class Pooler:
    """Computes rows that want no token but a vector: the hidden state of their last token, or the
    mean of those of all.

    A mean is summed up chunk by chunk, from the first token on: whoever is preempted begins anew.

    Args:
        states: the model without its head.
        page_size: tokens a page.
        most: sums that are kept; at least as many as requests run at once. Those of requests that
            were aborted go when there are more.
    """

    def __init__(self, states: States, page_size: int, most: int):
        self._states, self._page_size, self._most = states, page_size, most
        self._sums: OrderedDict[str, tuple[int, torch.Tensor]] = OrderedDict()
        """Tokens so far, and the sum of their states, by request; the latest ones last."""

    def execute(self, step: int, rows: Sequence[Row]) -> list[tuple[Sampled, ...]]:
        """One entry a row: its vector, fp32 little-endian, if this was the end of its prompt."""
        batch = paged_batch(StepPlan(step, list(rows)), self._page_size)
        ends = batch.qo_indptr[1:].tolist()
        wanted = [_wanted(row, end) for row, end in zip(rows, ends, strict=True)]
        batch.sample_rows = torch.cat([torch.arange(each.start, each.stop) for each in wanted])
        states = self._states(batch).cpu()
        parts = torch.split(states, [len(each) for each in wanted])
        return [self._pooled(row, part) for row, part in zip(rows, parts, strict=True)]

    def _pooled(self, row: Row, states: torch.Tensor) -> tuple[Sampled, ...]:
        if row.pooling == "mean":
            count, total = self._sums.pop(row.request_id, (0, None)) if row.start else (0, None)
            if count != row.start:
                return (Sampled(token=0, error="the first part of its mean is lost"),)
            added = states.sum(0, dtype=torch.float64)
            total = added if total is None else total + added
            if row.sampling is None:
                self._keep(row, total)
                return ()
            vector = (total / row.context).float()
        elif row.sampling is None:
            return ()
        else:
            vector = states[0]
        if not vector.isfinite().all():
            return (Sampled(token=0, error=NOT_A_NUMBER),)
        return (Sampled(token=0, vector=vector.numpy().astype("<f4").tobytes()),)

    def _keep(self, row: Row, total: torch.Tensor) -> None:
        self._sums[row.request_id] = (row.context, total)
        while len(self._sums) > self._most:
            self._sums.popitem(last=False)


def _wanted(row: Row, end: int) -> range:
    """The tokens of the batch whose states ``row``, which ends at ``end``, is pooled from."""
    if row.pooling == "mean":
        return range(end - row.count, end)
    return range(end - (row.sampling is not None), end)
