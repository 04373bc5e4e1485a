"""The next tokens, chosen where the logits are, so that a step can begin with them unseen.

The choices are those of ``radixserve.model.sampler``, in double precision as there. What looks at
the tokens so far, some of which only the device knows, is left to that one: rows with penalties,
bad words or a grammar; and so are rows that name the tokens that are allowed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from radixserve.model.sampler import NONE_LEFT, NOT_A_NUMBER, plainly_greedy, uniforms
from radixserve.scheduling.plan import Row, Sampled
from radixserve.scheduling.sampling import SamplingParams

Int32s = npt.NDArray[np.int32]

AT_ONCE = 1 << 22
"""Logits that are made double at a time: it bounds the memory that a step samples with."""
ERRORS = (None, NOT_A_NUMBER, NONE_LEFT)


class Draw(NamedTuple):
    """A token to choose: ``at`` is the row of the logits."""

    at: int
    row: Row
    params: SamplingParams


def left_to_host(row: Row) -> bool:
    """Whether a draw of ``row`` is not made here. O(draws)."""
    assert row.sampling is not None, "the row samples"
    draws = (row.sampling, *(fork.sampling for fork in row.forks))
    return row.matcher is not None or any(each.penalised or each.restricted for each in draws)


def draws_of(rows: Sequence[Row]) -> list[Draw]:
    """What ``rows``, which all sample, draw: each its own token and then those of its forks."""
    return [
        Draw(at, row, params)
        for at, row in enumerate(rows)
        for params in (row.sampling, *(fork.sampling for fork in row.forks))
        if params is not None
    ]


class Chosen(NamedTuple):
    """What ``Choices`` chose, on the device."""

    tokens: torch.Tensor
    """int64 [draws]."""
    verdicts: torch.Tensor
    """int64 [draws]: an index of ``ERRORS``."""
    logprobs: list[torch.Tensor]
    """fp64 [draws, 1 + 2K] of each group that wants them: of the token, of the K likeliest tokens,
    best first, and the ids of these."""


class Choices:
    """How the tokens of a step are chosen, as arrays: ``arrays`` go to the device in their order.

    O(draws) on the host.

    Raises:
        ValueError: a random draw has no seed.
    """

    def __init__(self, draws: Sequence[Draw], vocabulary: int, eos_token_ids: Collection[int]):
        self._draws = draws
        shaped = [i for i, draw in enumerate(draws) if not plainly_greedy(draw.row, draw.params)]
        shaped.sort(key=lambda i: _sorts(draws[i].params))  # those that need no sorting together
        size = max(1, AT_ONCE // vocabulary)
        fractions = _fractions([draws[i] for i in shaped])
        self._groups = [
            _Group(
                shaped[at : at + size],
                draws,
                fractions[at : at + size],
                vocabulary,
                eos_token_ids,
            )
            for at in range(0, len(shaped), size)
        ]
        rows = np.array([draw.at for draw in draws], np.int32)
        self.arrays: list[Int32s] = [
            # First what is read in 8 bytes, at even places therefore.
            *(group.floats.view(np.int32) for group in self._groups),
            rows,
            *(group.ints for group in self._groups),
        ]

    @torch.inference_mode()
    def choose(self, logits: torch.Tensor, loaded: Sequence[torch.Tensor]) -> Chosen:
        """From ``logits``, [rows, vocabulary]; ``loaded`` are the ``arrays`` on their device, which
        is not waited for."""
        count = len(self._groups)
        rows = loaded[count]
        best = logits.argmax(-1, keepdim=True)
        spoilt = ~torch.isfinite(logits.gather(-1, best))
        tokens = best.flatten().index_select(0, rows)
        verdicts = spoilt.flatten().long().index_select(0, rows)
        logprobs = []
        for group, floats, ints in zip(
            self._groups, loaded[:count], loaded[count + 1 :], strict=True
        ):
            draws, chosen, none_left, values = group.choose(logits, floats, ints)
            tokens.index_copy_(0, draws, chosen)
            before = verdicts.index_select(0, draws)
            verdicts.index_copy_(0, draws, torch.where(before > 0, before, none_left))
            if values is not None:
                logprobs.append(values)
        return Chosen(tokens, verdicts, logprobs)

    def sampled(self, chosen: Chosen) -> list[Sampled]:
        """The tokens of all draws; ``chosen`` is on the host."""
        found = [
            Sampled(token, error=ERRORS[verdict])
            for token, verdict in zip(chosen.tokens.tolist(), chosen.verdicts.tolist(), strict=True)
        ]
        values = iter(chosen.logprobs)
        for group in self._groups:
            if group.most is None:
                continue
            for draw, (own, *top) in zip(group.draws, next(values).tolist(), strict=True):
                wanted = self._draws[draw].params.logprobs
                if wanted is not None and found[draw].error is None:
                    likeliest = zip(map(int, top[group.most :]), top[: group.most], strict=True)
                    found[draw] = Sampled(found[draw].token, own, tuple(likeliest)[:wanted])
        return found


class _Group:
    """Draws that need more than the likeliest token; their logits are looked at together."""

    def __init__(
        self,
        chosen: list[int],
        draws: Sequence[Draw],
        fractions: Sequence[float],
        vocabulary: int,
        eos_token_ids: Collection[int],
    ):
        self.draws = chosen
        mine = [draws[i] for i in chosen]
        settings = [draw.params for draw in mine]
        self._sorts = any(map(_sorts, settings))
        wanted = [params.logprobs for params in settings if params.logprobs is not None]
        self.most = min(max(wanted), vocabulary) if wanted else None
        """Likeliest tokens to tell of; None if nobody wants logprobs."""
        biases = [
            (place * vocabulary + token, bias)
            for place, draw in enumerate(mine)
            for token, bias in _biases(draw, eos_token_ids)
        ]
        self.floats = np.array(
            [
                *(1.0 if params.greedy else params.temperature for params in settings),
                *fractions,
                *(math.log(p.min_p) if p.min_p else -math.inf for p in settings),
                *(params.top_p if params.top_p < 1 else math.inf for params in settings),
                *(bias for _, bias in biases),
            ],
            np.float64,
        )
        self.ints = np.array(
            [
                *chosen,
                *(draw.at for draw in mine),
                *(p.top_k if 0 < p.top_k < vocabulary else vocabulary for p in settings),
                *(params.greedy for params in settings),
                *(place for place, _ in biases),
            ],
            np.int32,
        )

    def choose(
        self, logits: torch.Tensor, floats: torch.Tensor, ints: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Which draws, their tokens, 2 for those that no token is left to, and their logprobs."""
        count = len(self.draws)
        # Each setting stands in a column, beside the logits of its draw.
        temperature, fraction, floor, top_p, bias = _columns(floats.view(torch.float64), count)
        draws, rows, top_k, greedy, places = _columns(ints.long(), count)
        raw = logits.index_select(0, rows.flatten()).double()
        adjusted = raw
        if len(bias):
            adjusted = raw.clone()
            adjusted.view(-1).scatter_add_(0, places.flatten(), bias.flatten())
        peak, likeliest = adjusted.max(-1, keepdim=True)
        scaled = (adjusted - peak) / temperature
        scaled.masked_fill_(scaled < floor, -math.inf)
        weights = _filtered(scaled, top_k, top_p) if self._sorts else scaled.exp()
        sums = weights.cumsum(-1)
        total = sums[:, -1:]
        # A token without weight is never at a fraction below 1, whatever the rounding.
        drawn = torch.minimum((sums <= fraction * total).sum(-1), (sums < total).sum(-1))
        tokens = torch.where(greedy.flatten() > 0, likeliest.flatten(), drawn)
        none_left = (peak.flatten() == -math.inf).long() * ERRORS.index(NONE_LEFT)
        values = None if self.most is None else _logprobs(raw, tokens, self.most)
        return draws.flatten(), tokens, none_left, values


def _sorts(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0


def _fractions(draws: Sequence[Draw]) -> list[float]:
    """The random number of each; greedy ones do not use theirs."""
    seeds = []
    for draw in draws:
        if draw.params.seed is None and not draw.params.greedy:
            raise ValueError(f"row {draw.row.request_id} samples at random without a seed")
        seeds.append(draw.params.seed or 0)
    numbers: list[float] = uniforms(seeds, [draw.row.generated for draw in draws]).tolist()
    return numbers


def _biases(draw: Draw, eos_token_ids: Collection[int]) -> list[tuple[int, float]]:
    """What is added to the logits of which tokens."""
    biases = list(draw.params.logit_bias.items())
    if draw.row.generated < draw.params.min_tokens:
        biases += [(token, -math.inf) for token in draw.params.stops(eos_token_ids)]
    return biases


def _columns(values: torch.Tensor, count: int) -> Sequence[torch.Tensor]:
    """Four columns of ``count`` values, and one of the rest."""
    return torch.split(values.unsqueeze(1), [count] * 4 + [len(values) - 4 * count])


def _filtered(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Weights of the tokens that top-k and top-p leave, 0 of the others."""
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    # Ties with the last one stay: which of them go must not be left to the sorting.
    ordered.masked_fill_(ordered < ordered.gather(-1, top_k - 1), -math.inf)
    weights = ordered.exp_()
    sums = weights.cumsum(-1)
    before = torch.zeros_like(sums)
    before[:, 1:] = sums[:, :-1]
    weights.masked_fill_(before >= top_p * sums[:, -1:], 0.0)
    return torch.zeros_like(weights).scatter_(-1, order, weights)


def _logprobs(raw: torch.Tensor, tokens: torch.Tensor, most: int) -> torch.Tensor:
    """See ``Chosen.logprobs``."""
    logprobs = raw - raw.amax(-1, keepdim=True)
    logprobs -= logprobs.exp().sum(-1, keepdim=True).log()
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    own = logprobs.gather(-1, tokens.unsqueeze(-1))
    return torch.cat([own, ordered[:, :most], order[:, :most].double()], -1)
