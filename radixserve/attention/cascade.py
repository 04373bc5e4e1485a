"""When reading shared pages once for all their rows pays: measured, not guessed."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from radixserve.attention.arrays import PagedBatch
from radixserve.folders import keep, recalled

log = logging.getLogger(__name__)

Timer = Callable[[int, int, bool], float]
"""Seconds that a layer takes for R decoding rows with T tokens in common, together or apart."""

ROWS = (2, 8, 32, 128)
TOKENS = (256, 1024, 4096, 16384)


@dataclass(frozen=True, slots=True)
class CascadeCost:
    """Seconds a layer, of R decoding rows that have T tokens in common.

    Apart they take ``read · R · T``; together ``read · T + compute · R · T + row · R``, and
    ``level`` for all runs of a level.
    """

    level: float
    """What a level costs whatever is in it: launches, and its share of planning."""
    row: float
    """To gather the query of a row and to merge what it has seen."""
    read: float
    """To read the KV of one token for one row."""
    compute: float
    """To let one row look at one token that is read anyway."""

    def saved(self, rows: int, tokens: int) -> float:
        """Seconds that a run saves, but for the cost of its level; negative where it loses."""
        apart = self.read * rows * tokens
        return apart - self.read * tokens - self.compute * rows * tokens - self.row * rows

    def gain(self, level: Iterable[tuple[int, int]]) -> float:
        """Seconds that runs of (rows, tokens), on one level, save beyond what the level costs."""
        return sum(self.saved(rows, tokens) for rows, tokens in level) - self.level

    def worth(self, level: Iterable[tuple[int, int]]) -> bool:
        """Whether runs of (rows, tokens), on one level, save more than the level costs."""
        return self.gain(level) > 0


def fitted(timer: Timer, sizes: Iterable[tuple[int, int]]) -> CascadeCost:
    """The cost that explains what ``timer`` says of (rows, tokens) best.

    Least squares of relative errors: a small batch, where the decision is close, counts as much as
    a large one. Nothing is below 0.
    """
    times = [(r, t, timer(r, t, False), timer(r, t, True)) for r, t in sizes]
    rows, tokens, apart, together = np.array(times, np.float64).T
    one = np.ones_like(rows)
    read, _ = _solved(np.stack([rows * tokens, one], 1), apart, apart)
    # What differs between the two, so that whatever both pay is in neither.
    extra = together - apart + read * rows * tokens - read * tokens
    level, row, compute = _solved(np.stack([one, rows, rows * tokens], 1), extra, apart)
    return CascadeCost(level=level, row=row, read=read, compute=compute)


def measured(device: str, timer: Timer, sizes: Iterable[tuple[int, int]]) -> CascadeCost:
    """What ``fitted`` finds on ``device``, a name with the geometry; kept from then on as JSON.

    A file that cannot be read is measured and written again.
    """
    name = re.sub(r"[^A-Za-z0-9.]+", "-", device)
    cost = recalled("cascade", name, CascadeCost)
    if cost is None:
        cost = fitted(timer, sizes)
        log.info("shared prefixes: measured %s", cost)
        keep("cascade", name, cost)
    return cost


def sharers(rows: int, shared: int, page_size: int) -> PagedBatch:
    """Rows that decode the first token of their own page behind ``shared`` pages of all."""
    counting = torch.arange(rows, dtype=torch.int32)
    pages = torch.arange(shared, dtype=torch.int32).expand(rows, -1)
    own = shared + counting
    return PagedBatch(
        page_size=page_size,
        qo_indptr=torch.arange(rows + 1, dtype=torch.int32),
        kv_indptr=torch.arange(rows + 1, dtype=torch.int32) * (shared + 1),
        kv_indices=torch.cat([pages, own[:, None]], 1).flatten(),
        last_page_len=torch.ones(rows, dtype=torch.int32),
        token_ids=torch.zeros(rows, dtype=torch.int64),
        positions=torch.full((rows,), shared * page_size),
        append_pages=own.long(),
        append_offsets=torch.zeros(rows, dtype=torch.int64),
        sample_rows=counting.long(),
    )


def _solved(features: np.ndarray, seconds: np.ndarray, weight: np.ndarray) -> list[float]:
    """Least squares without negative factors: the most negative is set to 0, until none is."""
    free = list(range(features.shape[1]))
    solution = np.zeros(features.shape[1])
    while free:
        chosen = features[:, free] / weight[:, None]
        found, *_ = np.linalg.lstsq(chosen, seconds / weight, rcond=None)
        if found.min() >= 0:
            solution[free] = found
            break
        free.pop(int(found.argmin()))
    return solution.tolist()
