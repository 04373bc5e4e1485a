"""The next token of each row, from its own logits alone, whatever else is in the batch."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import torch

from radixserve.scheduling.grammar import Matcher
from radixserve.scheduling.plan import Row, Sampled
from radixserve.scheduling.sampling import SamplingParams

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

NOT_A_NUMBER = "the model's output is not a number"
NONE_LEFT = "the sampling parameters rule out every token"


def sample(
    logits: torch.Tensor, rows: Sequence[Row], eos_token_ids: Collection[int]
) -> list[tuple[Sampled, ...]]:
    """For each of ``rows``, which all sample: its own token, then one for each of its forks.

    ``logits`` is [len(rows), vocabulary]. In this order: grammar, allowed tokens, logit bias,
    ``min_tokens``, bad words, penalties, temperature, min-p, top-k, top-p, each over what the one
    before left, as vLLM does.
    The penalties are counted from ``Row.history``: repetition (Keskar et al., 2019) over prompt and
    output, presence and frequency (OpenAI) over the output. Logprobs are of the model's own
    distribution, before all of that.

    A random row needs a seed: its one uniform number is Philox's for (seed, index of the output
    token), so that the same seed gives the same tokens in any batch.

    A row with a NaN or infinite logit (minus infinity, a token ruled out, is none) gets an error,
    and so does one that cannot be sampled for any other reason.
    """
    best, finite = _likeliest(logits)
    draws = [[_params(row), *(fork.sampling for fork in row.forks)] for row in rows]
    wanted = [
        i
        for i, row in enumerate(rows)
        if finite[i] and not all(plainly_greedy(row, params) for params in draws[i])
    ]
    raw: dict[int, Floats] = {}
    if wanted:
        raw = dict(zip(wanted, logits[wanted].double().cpu().numpy(), strict=True))
    sampled = []
    for i, row in enumerate(rows):
        if i in raw:
            tokens = _sample_row(raw[i], row, draws[i], eos_token_ids)
        else:
            error = None if finite[i] else NOT_A_NUMBER
            tokens = [Sampled(token=best[i], error=error)] * len(draws[i])
        sampled.append(tuple(tokens))
    return sampled


def _likeliest(logits: torch.Tensor) -> tuple[list[int], list[bool]]:
    """Of each row the likeliest token, and whether its logit is a number; NaN is the largest."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        # On a CPU numpy is ten times as fast as torch at this, which comes with every token.
        array = logits.numpy()
        best = array.argmax(-1)
        return best.tolist(), np.isfinite(array[np.arange(len(array)), best]).tolist()
    likeliest = logits.argmax(-1, keepdim=True)
    finite = torch.isfinite(logits.gather(-1, likeliest))
    return likeliest.flatten().tolist(), finite.flatten().tolist()


def uniform(seed: int, index: int) -> float:
    """The number in [0, 1) that belongs to output token ``index`` under ``seed``."""
    key = np.array([seed % 2**64, index], np.uint64)
    return (int(np.random.Philox(key=key).random_raw()) >> 11) * 2.0**-53


def uniforms(seeds: Sequence[int], indices: Sequence[int]) -> Floats:
    """``uniform`` of each pair, all at once: ten rounds of Philox 4x64 (Salmon et al., SC 2011) on
    the counter that numpy begins with."""
    keys = np.array([seed % 2**64 for seed in seeds], np.uint64), np.array(indices, np.uint64)
    zeros = np.zeros(len(seeds), np.uint64)
    a, b, c, d = zeros + np.uint64(1), zeros, zeros, zeros
    for step in range(10):
        first, second = (
            key + np.uint64(step * bump % 2**64) for key, bump in zip(keys, _BUMPS, strict=True)
        )
        high, low = _product(_FACTORS[0], a)
        other, least = _product(_FACTORS[1], c)
        a, b, c, d = other ^ b ^ first, least, high ^ d ^ second, low
    return (a >> np.uint64(11)).astype(np.float64) * 2.0**-53


_FACTORS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_BUMPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_HALF, _LOW = np.uint64(32), np.uint64(2**32 - 1)


def _product(
    factor: int, values: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The upper and the lower 64 bits."""
    low, high = np.uint64(factor % 2**32), np.uint64(factor >> 32)
    a, b = values & _LOW, values >> _HALF
    middle = high * a + (low * a >> _HALF)
    carry = (low * b + (middle & _LOW)) >> _HALF
    return high * b + (middle >> _HALF) + carry, np.uint64(factor) * values


def _params(row: Row) -> SamplingParams:
    if row.sampling is None:
        raise ValueError(f"row {row.request_id} does not sample")
    return row.sampling


def plainly_greedy(row: Row, params: SamplingParams) -> bool:
    """Whether the likeliest token is all that a draw of ``row`` needs. O(1)."""
    return (
        params.greedy
        and row.matcher is None
        and params.logprobs is None
        and not params.penalised
        and not params.restricted
        and not params.logit_bias
        and row.generated >= params.min_tokens
    )


def _sample_row(
    raw: Floats, row: Row, draws: Sequence[SamplingParams], eos_token_ids: Collection[int]
) -> list[Sampled]:
    try:
        return [_sample_one(raw, row, params, eos_token_ids) for params in draws]
    except Exception as error:  # whatever it is, it is no matter of the other rows
        log.exception("a token of %s could not be sampled", row.request_id)
        return [Sampled(token=0, error=f"its next token could not be chosen: {error}")] * len(draws)


def _sample_one(
    raw: Floats, row: Row, params: SamplingParams, eos_token_ids: Collection[int]
) -> Sampled:
    logits = _adjusted(raw, row, params, eos_token_ids)
    peak = logits.max()
    if peak == -math.inf:
        return Sampled(token=0, error=NONE_LEFT)
    if params.greedy:
        token = int(logits.argmax())
    else:
        if params.seed is None:
            raise ValueError(f"row {row.request_id} samples at random without a seed")
        with np.errstate(over="ignore"):  # a tiny temperature leaves the likeliest token alone
            scaled = (logits - peak) / params.temperature
        token = _draw(scaled, params, uniform(params.seed, row.generated))
    if params.logprobs is None:
        return Sampled(token=token)
    logprobs = raw - raw.max()
    logprobs -= math.log(np.exp(logprobs).sum())
    top = _largest(logprobs, params.logprobs)
    return Sampled(
        token=token,
        logprob=float(logprobs[token]),
        top=tuple(zip(top.tolist(), logprobs[top].tolist(), strict=True)),
    )


def _adjusted(
    raw: Floats, row: Row, params: SamplingParams, eos_token_ids: Collection[int]
) -> Floats:
    """Logits after all that comes before temperature; ``raw`` itself when none of it applies."""
    too_short = row.generated < params.min_tokens
    shaped = params.logit_bias or params.penalised or params.restricted
    if not (row.matcher or shaped or too_short):
        return raw
    logits = raw.copy()
    if row.matcher is not None:
        logits[~_in_grammar(row.matcher, params, eos_token_ids, len(raw))] = -math.inf
    if params.allowed_token_ids is not None:
        logits = _only(logits, params.allowed_token_ids)
    if params.logit_bias:
        logits[list(params.logit_bias)] += list(params.logit_bias.values())
    if too_short:
        logits[list(params.stops(eos_token_ids))] = -math.inf
    if bad := params.bad_tokens(row.history, row.generated):
        left = logits.copy()
        left[bad] = -math.inf
        logits = left if left.max() > -math.inf else logits
    if params.penalised:
        tokens = np.frombuffer(row.history, np.dtype(">i4"))
        if params.repetition_penalty != 1.0:
            seen = np.bincount(tokens, minlength=len(raw)) > 0
            factor = np.where(logits > 0, 1 / params.repetition_penalty, params.repetition_penalty)
            logits = np.where(seen, logits * factor, logits)
        counts = np.bincount(tokens[row.prompt_length :], minlength=len(raw))
        logits -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    return logits


def _only(logits: Floats, tokens: Sequence[int]) -> Floats:
    kept = np.full_like(logits, -math.inf)
    kept[list(tokens)] = logits[list(tokens)]
    return kept


def _in_grammar(
    matcher: Matcher, params: SamplingParams, eos_token_ids: Collection[int], vocabulary: int
) -> npt.NDArray[np.bool_]:
    """Which tokens may follow: stop tokens, and no others of the model's ends, where the answer may
    end."""
    packed = np.frombuffer(matcher.allowed(), np.uint8)
    allowed = np.unpackbits(packed, count=vocabulary, bitorder="little").view(np.bool_)
    allowed[list(eos_token_ids)] = False
    allowed[list(params.stops(eos_token_ids))] = matcher.may_end
    return allowed


def _draw(scaled: Floats, params: SamplingParams, fraction: float) -> int:
    """The token at ``fraction`` of the filtered distribution; ``scaled`` has 0 as its maximum."""
    floor = math.log(params.min_p) if params.min_p else -math.inf
    kept: npt.NDArray[np.intp] | None = None
    if floor > -math.inf:
        kept = np.flatnonzero(scaled >= floor)
        scaled = scaled[kept]
    if 0 < params.top_k < len(scaled):
        # Ties with the last one stay: which of them go must not be left to the sorting.
        position = len(scaled) - params.top_k
        within = np.flatnonzero(scaled >= np.partition(scaled, position)[position])
        kept = within if kept is None else kept[within]
        scaled = scaled[within]
    weights = np.exp(scaled)
    if params.top_p < 1.0:
        within = _nucleus(weights, params.top_p)
        kept = within if kept is None else kept[within]
        weights = weights[within]
    cumulated = np.cumsum(weights)
    # A token without weight is never at a fraction below 1, whatever the rounding.
    position = int(np.searchsorted(cumulated, fraction * cumulated[-1], side="right"))
    position = min(position, int(np.searchsorted(cumulated, cumulated[-1])))
    return position if kept is None else int(kept[position])


def _nucleus(weights: Floats, top_p: float) -> npt.NDArray[np.intp]:
    """The fewest likeliest tokens that have ``top_p`` of the weight, in order of their ids."""
    total = weights.sum()
    # All tokens below this weight together have less than what may be left out: no need to sort.
    candidates = np.flatnonzero(weights >= (1.0 - top_p) * total / len(weights))
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    count = int(np.searchsorted(np.cumsum(weights[order]), top_p * total)) + 1
    return np.sort(order[:count])


def _largest(values: Floats, count: int) -> npt.NDArray[np.intp]:
    """Indices of the ``count`` largest values, largest first, the lower index first in a tie."""
    if count == 0:
        return np.empty(0, np.intp)
    if count < len(values):
        position = len(values) - count
        candidates = np.flatnonzero(values >= np.partition(values, position)[position])
    else:
        candidates = np.arange(len(values))
    order = np.argsort(-values[candidates], kind="stable")
    return candidates[order[:count]]
