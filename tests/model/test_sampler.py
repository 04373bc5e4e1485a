"""The sampler, against one written the naive way, and against the distributions it should draw."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from radixserve.model.sampler import sample, uniform, uniforms
from radixserve.scheduling.plan import Fork, Row, Sampled
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack, unpack
from tests.model.sampling import EOS, SETTINGS, VOCABULARY, logits_of, row


def draw(logits: torch.Tensor, *rows: Row) -> list[Sampled]:
    return [first for first, *_ in sample(logits, rows, EOS)]


def naive_distribution(logits: list[float], row: Row) -> list[float]:
    """Probabilities of the next token, from the definitions, one number at a time."""
    params = row.sampling
    assert params is not None
    history = np.frombuffer(row.history, ">i4").tolist()
    output = history[row.prompt_length :]
    values = list(logits)
    if params.allowed_token_ids is not None:
        allowed = params.allowed_token_ids
        values = [each if i in allowed else -math.inf for i, each in enumerate(values)]
    for token, bias in params.logit_bias.items():
        values[token] += bias
    if len(output) < params.min_tokens:
        for token in {*params.stop_token_ids, *(set() if params.ignore_eos else EOS)}:
            values[token] = -math.inf
    for word in map(unpack, params.bad_words):
        if output[len(output) - len(word) + 1 :] == word[:-1]:
            values[word[-1]] = -math.inf
    for token in set(history):
        factor = params.repetition_penalty
        values[token] = values[token] * factor if values[token] < 0 else values[token] / factor
    for token, count in Counter(output).items():
        values[token] -= params.frequency_penalty * count + params.presence_penalty
    if params.temperature == 0:
        return [float(token == values.index(max(values))) for token in range(len(values))]
    exps = [math.exp((value - max(values)) / params.temperature) for value in values]
    exps = [each if each >= params.min_p else 0.0 for each in exps]
    if params.top_k > 0:
        last = sorted(exps, reverse=True)[min(params.top_k, len(exps)) - 1]
        exps = [each if each >= last else 0.0 for each in exps]
    total, before, kept = sum(exps), 0.0, set()
    for token in sorted(range(len(exps)), key=lambda token: (-exps[token], token)):
        if before < params.top_p * total:
            kept.add(token)
        before += exps[token]
    exps = [each if token in kept else 0.0 for token, each in enumerate(exps)]
    return [each / sum(exps) for each in exps]


def naive(logits: list[float], row: Row) -> int:
    assert row.sampling is not None
    assert row.sampling.seed is not None
    left = uniform(row.sampling.seed, row.generated)
    distribution = naive_distribution(logits, row)
    for token, share in enumerate(distribution):
        left -= share
        if left < 0:
            return token
    return max(token for token, share in enumerate(distribution) if share)


@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS.keys())
def test_tokens_are_those_of_the_naive_sampler(params: dict[str, Any]):
    chance = random.Random(3)
    rows, seeds = [], range(60)
    for seed in seeds:
        prompt = chance.choices(range(VOCABULARY), k=chance.randrange(1, 20))
        output = chance.choices(range(VOCABULARY), k=chance.randrange(12))
        rows.append(row(prompt, output, **{**params, "seed": seed}))
    logits = logits_of(*seeds)
    expected = [
        naive(values, each) for values, each in zip(logits.double().tolist(), rows, strict=True)
    ]
    assert [each.token for each in draw(logits, *rows)] == expected


def test_a_row_samples_the_same_whatever_is_in_the_batch():
    rows = [row(output=[1] * n, **params) for n, params in enumerate(SETTINGS.values())]
    logits = logits_of(*range(len(rows)))
    together = draw(logits, *rows)
    alone = [draw(logits[i : i + 1], each)[0] for i, each in enumerate(rows)]
    backwards = draw(logits.flip(0), *rows[::-1])[::-1]
    assert together == alone == backwards


@pytest.mark.parametrize("name", ["plain", "top_k", "top_p", "min_p", "everything"])
def test_draws_follow_the_filtered_distribution(name: str):
    draws = 4000
    logits = logits_of(5, scale=1.0)
    rows = [row(**{**SETTINGS[name], "seed": seed}) for seed in range(draws)]
    counts = Counter(each.token for each in draw(logits.expand(draws, -1), *rows))
    shares = naive_distribution(logits[0].double().tolist(), rows[0])
    assert not [token for token in counts if shares[token] == 0]
    expected = {token: share * draws for token, share in enumerate(shares) if share * draws > 5}
    statistic = sum((counts[token] - mean) ** 2 / mean for token, mean in expected.items())
    freedom = len(expected) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_a_bad_word_ends_nowhere_in_the_output_unless_nothing_else_is_left():
    bad = (pack([3]), pack([5, 6]), pack([1, 2, 8]))
    logits = torch.zeros(1, VOCABULARY)
    for output, out in ([], [3]), ([5], [3, 6]), ([2], [3]), ([1, 2], [3, 8]), ([9, 5], [3, 6]):
        for token in out:
            tempted = row([1, 2], output, bad_words=bad, logit_bias={token: 90.0})
            assert draw(logits, tempted)[0].token != token
            others = row([1, 2], output, bad_words=bad, logit_bias={4: 90.0})
            assert draw(logits, others)[0].token == 4
    only = row([1], [], bad_words=bad, allowed_token_ids=(3,))
    assert draw(logits, only) == [Sampled(token=3)]
    [two] = draw(logits, row([1], [], bad_words=bad, allowed_token_ids=(3, 4)))
    assert two.token == 4


def test_a_seed_repeats_itself_and_every_token_of_it_is_drawn_anew():
    numbers = [uniform(seed, index) for seed in (0, 1, -1, 2**63 - 1) for index in range(500)]
    assert numbers == [uniform(s, i) for s in (0, 1, -1, 2**63 - 1) for i in range(500)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.03


def test_many_numbers_at_once_are_those_drawn_one_by_one():
    chance = random.Random(1)
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), *(chance.getrandbits(63) for _ in range(500))]
    indices = [0, 5, 0, 2**31, 7, *(chance.randrange(10_000) for _ in range(500))]
    one_by_one = [uniform(seed, index) for seed, index in zip(seeds, indices, strict=True)]
    assert uniforms(seeds, indices).tolist() == one_by_one
    assert uniforms([], []).tolist() == []


def test_forks_sample_the_same_logits_each_its_own_way():
    first = row(seed=1)
    others = [SamplingParams(seed=seed) for seed in range(2, 30)]
    first.forks = [Fork(str(n), params) for n, params in enumerate(others)]
    logits = logits_of(9)
    (tokens,) = sample(logits, [first], EOS)
    alone = [draw(logits, row(seed=seed))[0] for seed in range(1, 30)]
    assert list(tokens) == alone
    assert len({each.token for each in tokens}) > 3
    greedy = row(temperature=0)
    greedy.forks = [Fork("g", SamplingParams(temperature=0))]
    assert sample(logits, [greedy], EOS) == [(Sampled(int(logits.argmax())),) * 2]


@pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"repetition_penalty": 2.0}])
def test_logprobs_are_of_the_model_and_not_of_the_filters(params: dict[str, Any]):
    logits = logits_of(4)
    (sampled,) = draw(logits, row(**params, logprobs=3))
    model = logits[0].double().log_softmax(-1)
    assert sampled.logprob == pytest.approx(float(model[sampled.token]), abs=1e-9)
    best = model.topk(3)
    assert [token for token, _ in sampled.top] == best.indices.tolist()
    assert [value for _, value in sampled.top] == pytest.approx(best.values.tolist(), abs=1e-9)
    (chosen_only,) = draw(logits, row(**params, logprobs=0))
    assert chosen_only.top == ()
    assert chosen_only.logprob == sampled.logprob


def test_ties_go_to_the_lower_token():
    flat = torch.zeros(1, VOCABULARY)
    assert draw(flat, row(temperature=0))[0].token == 0
    assert [token for token, _ in draw(flat, row(logprobs=3))[0].top] == [0, 1, 2]
    drawn = {draw(flat, row(top_p=0.1, seed=seed))[0].token for seed in range(200)}
    assert drawn == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"logprobs": 2}])
def test_a_row_that_is_not_a_number_fails_alone(bad: float, params: dict[str, Any]):
    logits = logits_of(1, 2, 3)
    healthy = draw(logits, *[row(**params)] * 3)
    logits[1, 13] = bad
    first, failed, last = draw(logits, *[row(**params)] * 3)
    assert failed.error is not None
    assert (first, last) == (healthy[0], healthy[2])


def test_a_row_that_cannot_be_sampled_fails_alone(caplog: pytest.LogCaptureFixture):
    logits = logits_of(1, 2, 3)
    healthy = draw(logits, *[row(seed=4)] * 3)
    odd = row(seed=None)  # nobody has given it a seed
    odd.forks = [Fork("fork", SamplingParams(seed=None))]
    (first,), failed, (last,) = sample(logits, [row(seed=4), odd, row(seed=4)], EOS)
    assert (first, last) == (healthy[0], healthy[2])
    assert len(failed) == 2
    assert all(each.error is not None and "seed" in each.error for each in failed)
    assert "could not be sampled" in caplog.text


def test_a_token_that_the_model_rules_out_is_no_fault():
    logits = logits_of(1)
    logits[0, 20:] = -math.inf
    drawn = {draw(logits, row(seed=seed))[0].token for seed in range(300)}
    assert drawn <= set(range(20))


def test_parameters_that_rule_out_everything_fail_the_row():
    logits = torch.full((1, VOCABULARY), -math.inf)
    logits[0, 7] = 1.0
    assert draw(logits, row(min_tokens=1))[0].error is not None


def test_a_temperature_next_to_zero_is_greedy_and_a_high_one_is_not():
    logits = logits_of(2)
    best = int(logits.argmax())
    assert draw(logits, row(temperature=5e-324, seed=5))[0].token == best
    assert len({draw(logits, row(temperature=2.0, seed=s))[0].token for s in range(50)}) > 10


def test_penalties_see_the_whole_history_and_not_only_what_was_computed():
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 30], logits[0, 31] = 2.0, 1.9
    cached = row([30] * 100, repetition_penalty=2.0, temperature=0)
    cached.tokens, cached.start = pack([30]), 99
    assert draw(logits, cached)[0].token == 31
    assert draw(logits, row([30] * 100, presence_penalty=2.0, temperature=0))[0].token == 30


def test_half_precision_logits_are_sampled_as_they_are():
    logits = logits_of(6).bfloat16()
    for params in SETTINGS.values():
        assert draw(logits, row(**params)) == draw(logits.float(), row(**params))
