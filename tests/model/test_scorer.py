"""How likely tokens are: by hand on few logits, and the same however few rows are looked at."""

from __future__ import annotations

import math
from array import array

import pytest
import torch

from radixserve.model import scorer
from radixserve.model.sampler import NOT_A_NUMBER
from radixserve.model.scorer import Scoring, joined
from radixserve.scheduling.plan import Row, Sampled, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack


def row(tokens: list[int], scores: range, rivals: int = 0, *, samples: bool = False) -> Row:
    packed = pack(tokens)
    sampling = SamplingParams(temperature=0.0) if samples else None
    return Row("r", packed, 0, array("i", [1]), sampling, packed, scores=scores, rivals=rivals)


def scored(rows: list[Row], logits: torch.Tensor) -> list[tuple[Sampled, ...]]:
    scoring = Scoring(StepPlan(1, rows), logits.shape[-1])
    return scoring.sampled(scoring.score(logits, torch.from_numpy(scoring.targets).long()))


def test_the_logprob_is_of_the_token_that_comes_next():
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]]))
    [[first, second]] = scored([row([0, 2, 1], range(2), 2)], logits)
    assert (first.token, first.rank) == (2, 1)
    assert first.logprob == pytest.approx(math.log(0.7))
    assert [token for token, _ in first.top] == [2, 1]
    assert (second.token, second.rank) == (1, 2)
    assert second.top[0] == (0, pytest.approx(math.log(0.5)))


def test_of_equals_the_one_with_the_lower_id_comes_first():
    logits = torch.tensor([[1.0, 3.0, 1.0, 3.0, 1.0]]).expand(5, 5)
    [entries] = scored([row([0, 0, 1, 2, 3, 4], range(5), 5)], logits)
    assert [each.rank for each in entries] == [3, 1, 4, 2, 5]
    assert [token for token, _ in entries[0].top] == [1, 3, 0, 2, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_looked_at_a_few_at_a_time(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(9, 50, generator=generator).to(dtype)
    rows = [row(list(range(10, 20)), range(2, 8), 3), row([7, 8, 9, 10], range(3), 20)]
    together = scored(rows, logits)
    monkeypatch.setattr(scorer, "AT_ONCE", 100)
    assert scored(rows, logits) == together
    assert [len(entries) for entries in together] == [6, 3]
    assert [len(entries[0].top) for entries in together] == [3, 20]
    expected = torch.log_softmax(logits.double(), -1)[6, 8].item()
    assert together[1][0].logprob == pytest.approx(expected)


def test_what_is_no_number_is_an_error_of_its_own_row():
    logits = torch.zeros(2, 4)
    logits[0, 3] = math.nan
    first, second = scored([row([0, 1], range(1)), row([0, 1], range(1))], logits)
    assert first[0].error == NOT_A_NUMBER
    assert second[0].error is None


def test_a_row_has_its_own_token_first():
    token, score = Sampled(5), Sampled(6, -1.0, rank=2)
    rows = [
        row([0, 1], range(0), samples=True),
        row([0, 1], range(1), samples=True),
        row([0, 1], range(1)),
        row([0, 1], range(0)),
    ]
    entries = joined(rows, iter([(token,), (token, token)]), [(score,), (score,)])
    assert entries == [(token,), (token, token, score), (score,), ()]
