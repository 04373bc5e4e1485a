"""How likely the tokens of a prompt are, each after those before it.

Logits are looked at a few rows at a time, on their own device, which is not waited for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from radixserve.model.sampler import NOT_A_NUMBER
from radixserve.scheduling.plan import Row, Sampled, StepPlan

AT_ONCE = 1 << 22
"""Logits that are made double at a time: it bounds the memory that a step scores with."""


class Scoring:
    """What the rows of ``plan`` score. O(rows that do not decode + tokens scored)."""

    def __init__(self, plan: StepPlan, vocabulary: int):
        self._rows = [row for row in plan.rows[plan.decoding :] if row.scores]
        self._most = min(max((row.rivals for row in self._rows), default=0), vocabulary)
        following = [
            np.frombuffer(row.history, ">i4")[row.scores.start + 1 : row.scores.stop + 1]
            for row in self._rows
        ]
        self.targets: npt.NDArray[np.int32] = np.concatenate(
            [np.empty(0, np.int32), *following], dtype=np.int32
        )
        """int32 [N]: the tokens that are scored, row by row."""

    @torch.inference_mode()
    def score(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """fp64 [N, 2 + 2K]: logprob and rank of each of ``targets``, then the logprobs of the K
        likeliest tokens in its place, best first, and the ids of these.

        ``logits``, [N, vocabulary], are on the device of ``targets``, which are int64 there.
        """
        size = max(1, AT_ONCE // logits.shape[-1])
        parts = [
            _scores(logits[at : at + size].double(), targets[at : at + size, None], self._most)
            for at in range(0, len(targets), size)
        ]
        return torch.cat(parts) if parts else logits.new_empty(0, 2)

    def sampled(self, scores: torch.Tensor) -> list[tuple[Sampled, ...]]:
        """The scored tokens of each row that scores; ``scores`` is on the host."""
        entries = zip(self.targets.tolist(), scores.tolist(), strict=True)
        return [
            tuple(self._entry(*next(entries), row.rivals) for _ in row.scores) for row in self._rows
        ]

    def _entry(self, token: int, values: list[float], wanted: int) -> Sampled:
        logprob, rank, *top = values
        if math.isnan(logprob):
            return Sampled(token, error=NOT_A_NUMBER)
        likeliest = zip(map(int, top[self._most :]), top[: self._most], strict=True)
        return Sampled(token, logprob, tuple(likeliest)[:wanted], rank=int(rank))


def joined(
    rows: Sequence[Row],
    sampled: Iterator[tuple[Sampled, ...]],
    scored: Sequence[tuple[Sampled, ...]],
) -> list[tuple[Sampled, ...]]:
    """One entry a row: the tokens of one that samples, then those that it scores."""
    scores = iter(scored)
    return [
        (() if row.sampling is None else next(sampled)) + (next(scores) if row.scores else ())
        for row in rows
    ]


def _scores(logits: torch.Tensor, targets: torch.Tensor, most: int) -> torch.Tensor:
    logprobs = logits - logits.amax(-1, keepdim=True)
    logprobs -= logprobs.exp().sum(-1, keepdim=True).log()
    own = logprobs.gather(-1, targets)
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    # Of equals the one with the lower id comes first.
    ahead = (logprobs > own) | ((logprobs == own) & (tokens < targets))
    rank = 1 + ahead.sum(-1, keepdim=True)
    top, order = logprobs.topk(most, -1)
    order, places = order.sort(dim=-1)
    top, places = top.gather(-1, places).sort(dim=-1, descending=True, stable=True)
    return torch.cat([own, rank.double(), top, order.gather(-1, places).double()], -1)
