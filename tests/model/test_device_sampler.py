"""The sampler on the device chooses what the sampler on the host does, and waits for nothing."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from radixserve.attention.staging import Staging
from radixserve.model import device_sampler
from radixserve.model.device_sampler import Choices, draws_of, left_to_host
from radixserve.model.sampler import sample
from radixserve.scheduling.plan import Fork, Row, Sampled
from radixserve.scheduling.sampling import SamplingParams
from tests.attention.fake_device import FakeDevice
from tests.model.sampling import EOS, SETTINGS, VOCABULARY, logits_of, row

COUNTING = (
    "repetition", "repetition rewarded", "presence", "frequency", "everything", "allowed",
    "bad words",
)  # fmt: skip
ON_DEVICE = {name: params for name, params in SETTINGS.items() if name not in COUNTING}


def choose(logits: torch.Tensor, *rows: Row) -> list[Sampled]:
    device = FakeDevice()
    choices = Choices(draws_of([*rows]), logits.shape[-1], EOS)
    loaded = [sent for _, sent in Staging(device).load(choices.arrays)]
    return choices.sampled(choices.choose(logits, loaded))


def on_host(logits: torch.Tensor, *rows: Row) -> list[Sampled]:
    return [token for tokens in sample(logits, rows, EOS) for token in tokens]


def assert_same(found: list[Sampled], expected: list[Sampled]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.error == theirs.error
        if mine.error is None:
            assert mine.token == theirs.token
        assert (mine.logprob is None) == (theirs.logprob is None)
        if mine.logprob is not None:
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-9)
        assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]
        values = [value for _, value in theirs.top]
        assert [value for _, value in mine.top] == pytest.approx(values, abs=1e-9)


def random_rows(count: int, **params: Any) -> list[Row]:
    chance = random.Random(3)
    rows = []
    for seed in range(count):
        prompt = chance.choices(range(VOCABULARY), k=chance.randrange(1, 20))
        output = chance.choices(range(VOCABULARY), k=chance.randrange(12))
        rows.append(row(prompt, output, **{**params, "seed": seed}))
    return rows


@pytest.mark.parametrize("params", ON_DEVICE.values(), ids=ON_DEVICE.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_are_those_of_the_sampler_on_the_host(params: dict[str, Any], dtype: torch.dtype):
    logits = logits_of(*range(80)).to(dtype)  # in bf16 many of them tie
    rows = random_rows(80, **params)
    assert_same(choose(logits, *rows), on_host(logits, *rows))


@pytest.mark.parametrize("at_once", [1, VOCABULARY, 7 * VOCABULARY, 1 << 22])
def test_any_mix_of_settings_forks_and_logprobs_is_told_apart(
    at_once: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(device_sampler, "AT_ONCE", at_once)
    chance = random.Random(at_once)
    rows = []
    for _ in range(60):
        params = chance.choice(list(ON_DEVICE.values()))
        logprobs = chance.choice([None, None, 0, 3, 20])
        each = row(output=[1] * chance.randrange(12), **params, logprobs=logprobs)
        for index in range(chance.choice([0, 0, 2])):
            other = chance.choice(list(ON_DEVICE.values()))
            each.forks.append(Fork("f", SamplingParams(**other, seed=100 + index)))
        rows.append(each)
    logits = logits_of(*range(60))
    assert_same(choose(logits, *rows), on_host(logits, *rows))


def test_ties_go_to_the_lower_token():
    flat = torch.zeros(1, VOCABULARY)
    for params in ({"temperature": 0}, {"logprobs": 20}, {"top_p": 0.1}, {"top_k": 3}):
        for seed in range(40):
            each = row(**{**params, "seed": seed})
            assert_same(choose(flat, each), on_host(flat, each))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("params", [{}, {"temperature": 0}, {"logprobs": 2}, {"top_p": 0.5}])
def test_a_row_that_is_not_a_number_fails_alone(bad: float, params: dict[str, Any]):
    logits = logits_of(1, 2, 3)
    logits[1, 13 if bad > 0 or math.isnan(bad) else slice(None)] = bad
    rows = [row(**params)] * 3
    found = choose(logits, *rows)
    assert found[1].error is not None
    assert 0 <= found[1].token < VOCABULARY  # the next step looks it up before anybody knows
    assert_same(found, on_host(logits, *rows))


def test_parameters_that_rule_out_every_token_say_so():
    none = row(min_tokens=5, stop_token_ids=tuple(range(VOCABULARY)))
    rows = [row(), none, row(temperature=0)]
    logits = logits_of(1, 2, 3)
    found = choose(logits, *rows)
    assert "rule out every token" in (found[1].error or "")
    assert_same(found, on_host(logits, *rows))


def test_a_vocabulary_with_fewer_tokens_than_logprobs_are_wanted():
    logits = logits_of(1)[:, :5]
    each = row(logprobs=20, top_k=40)
    assert_same(choose(logits, each), on_host(logits, each))
    assert len(choose(logits, each)[0].top) == 5


def test_penalties_and_what_may_not_be_chosen_are_left_to_the_host():
    assert {name for name, params in SETTINGS.items() if left_to_host(row(**params))} == set(
        COUNTING
    )
    forked = row()
    forked.forks = [Fork("f", SamplingParams(seed=1, presence_penalty=0.5))]
    assert left_to_host(forked)


def test_a_random_draw_without_a_seed_is_refused():
    with pytest.raises(ValueError, match="without a seed"):
        choose(logits_of(1), row(seed=None))


def test_no_value_is_ever_looked_at():
    rows = [row(**params, logprobs=2) for params in ON_DEVICE.values()]
    rows += [row(**params) for params in ON_DEVICE.values()]
    choices = Choices(draws_of(rows), VOCABULARY, EOS)
    loaded = [sent for _, sent in Staging(FakeDevice("meta")).load(choices.arrays)]
    logits = torch.empty(len(rows), VOCABULARY, device="meta")  # has no values to be read
    chosen = choices.choose(logits, loaded)
    assert chosen.tokens.shape == chosen.verdicts.shape == (len(rows),)
