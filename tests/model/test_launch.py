"""Steps launched one behind the other give the tokens of steps computed one by one."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from radixserve.attention.arrays import PagedBatch
from radixserve.cache.pages import PageCopy
from radixserve.config import EngineConfig
from radixserve.engine.core import EngineCore
from radixserve.engine.grammars import Grammars
from radixserve.engine.messages import GenerationDelta, GenerationRequest
from radixserve.model.launch import LaunchedStep
from radixserve.model.loader import ModelFiles
from radixserve.model.runner import ModelRunner
from radixserve.scheduling.grammar import Grammar
from radixserve.scheduling.plan import UNKNOWN, Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.text.grammar import TokenTable
from radixserve.tokens import pack
from tests.attention.fake_device import RaceError
from tests.model import tiny
from tests.model.launched import PAGE, PAGES, LateDevice, TinyRunner, launcher
from tests.text.tiny import byte_level

TABLE = TokenTable([bytes([byte]) for byte in range(tiny.VOCABULARY)], [2], [2], byte_level())
"""A token a byte."""
Answers = dict[str, tuple[list[int], list[float], str | None]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("model"))


class EarlyDevice(LateDevice):
    """One that is done with everything before anybody asks."""

    def receive(self, source: torch.Tensor) -> torch.Tensor:
        host = super().receive(source)
        self.stream.finish()
        return host


def settings(chance: random.Random, penalties: bool) -> dict[str, Any]:
    choices: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "logprobs": 3},
        {},
        {"top_k": 5, "logprobs": 1},
        {"top_p": 0.8, "temperature": 0.7},
        {"min_p": 0.05, "logit_bias": {7: 3.0}},
        {"min_tokens": 6, "stop_token_ids": tuple(range(0, tiny.VOCABULARY, 9))},
        {"stop_token_ids": tuple(range(0, tiny.VOCABULARY, 5))},
    ]
    if penalties:
        choices += [{"repetition_penalty": 1.3}, {"frequency_penalty": 0.5, "temperature": 0.0}]
        form = Grammar("regex", "[b-m]{3}(x[a-f])*")
        choices += [{"grammar": form}, {"grammar": form, "temperature": 0.0, "logprobs": 2}]
    return chance.choice(choices)


def answers(runner: TinyRunner, seed: int, *, penalties: bool) -> Answers:
    """To random requests that come one after the other."""
    chance = random.Random(seed)
    config = EngineConfig(
        page_size=PAGE, num_pages=PAGES, max_num_seqs=5, max_num_batched_tokens=24, seed=1
    )
    core = EngineCore(config, runner, Grammars(TABLE))
    stem = [chance.randrange(3, tiny.VOCABULARY) for _ in range(40)]
    found: Answers = {}

    def take(deltas: list[GenerationDelta]) -> None:
        core.cache.check()
        for delta in deltas:
            tokens, logprobs, _ = found[delta.id]
            for each in delta.scored:
                assert each.rank is not None
                logprobs += [each.rank, each.logprob, *(value for _, value in each.top)]
            for each in delta.sampled:
                tokens.append(each.token)
                if each.logprob is not None:
                    logprobs += [each.logprob, *(value for _, value in each.top)]
            found[delta.id] = (tokens, logprobs, delta.error or delta.finish)

    for number in range(14):
        cut, more = chance.randrange(1, 40), chance.randrange(6)
        prompt = stem[:cut] + [chance.randrange(3, tiny.VOCABULARY) for _ in range(more)]
        params = SamplingParams(
            max_tokens=chance.randrange(6, 20),
            seed=number,
            prompt_logprobs=number % 3 if number % 4 > 1 else None,
            prompt_logprobs_start=1 + number,
            **settings(chance, penalties),
        )
        for index in range(chance.choice([1, 1, 2])):
            name = f"{number}/{index}"
            found[name] = ([], [], None)
            sibling = f"{number}/0" if index else None
            core.add(
                GenerationRequest(id=name, tokens=pack(prompt), sampling=params, sibling=sibling)
            )
        for _ in range(chance.randrange(6)):
            take(core.step())
    while not core.idle:
        take(core.step())
    return found


@pytest.mark.parametrize("device", [LateDevice, EarlyDevice])
@pytest.mark.parametrize("penalties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_those_of_steps_computed_one_by_one(
    checkpoint: Path, device: type[LateDevice], penalties: bool, seed: int
):
    made = device()
    runner = TinyRunner(checkpoint, made)
    found = answers(runner, seed, penalties=penalties)
    expected = answers(TinyRunner(checkpoint, None), seed, penalties=penalties)
    assert found.keys() == expected.keys()
    for name, (tokens, logprobs, finish) in found.items():
        assert (tokens, finish) == (expected[name][0], expected[name][2])
        assert logprobs == pytest.approx(expected[name][1], abs=1e-4)
    assert runner.unknown > (0 if penalties else 10)
    made.stream.finish()


def test_the_stand_in_notices_a_host_that_does_not_wait(checkpoint: Path):
    device = LateDevice(deaf=True)
    found = answers(TinyRunner(checkpoint, device), 0, penalties=False)
    assert all(finish not in ("stop", "length") for _, _, finish in found.values())
    with pytest.raises(RaceError):
        device.stream.finish()


def decode(name: str, start: int, tokens: bytes = UNKNOWN, **params: Any) -> Row:
    sampling = SamplingParams(**{"seed": 1, **params})
    return Row(name, tokens, start, array("i", [1, 2, 3]), sampling, b"", 1)


def test_nothing_on_the_device_is_read_by_the_host():
    def compute(copies: Sequence[PageCopy], batch: PagedBatch) -> torch.Tensor:
        ids = batch.token_ids.to("meta")  # whose tensors have shapes, and no values to be read
        if batch.unknown is not None:
            batch.unknown.fill(ids)
        return torch.empty(len(batch.sample_rows), tiny.VOCABULARY, device="meta")

    launch = launcher(compute, LateDevice("meta"))
    params: list[dict[str, Any]] = [{}, {"temperature": 0}, {"top_p": 0.5}, {"logprobs": 2}]
    for step in range(3):
        rows = [
            decode(str(index), 3 + step, UNKNOWN if step else pack([5]), **each)
            for index, each in enumerate(params)
        ]
        assert launch(StepPlan(step, rows, decoding=len(rows))).followable


def test_a_token_that_nobody_chooses_is_refused():
    launch = launcher(lambda copies, batch: torch.zeros(1, tiny.VOCABULARY), LateDevice())
    launch(StepPlan(1, [decode("a", 3, pack([5]))], decoding=1))
    with pytest.raises(KeyError):
        launch(StepPlan(2, [decode("b", 4)], decoding=1))


def test_a_step_waits_for_the_copies_of_the_one_before_alone():
    device = LateDevice()
    launch = launcher(lambda copies, batch: torch.zeros(1, tiny.VOCABULARY), device)
    steps: list[LaunchedStep] = []
    for step in range(4):
        token = UNKNOWN if step else pack([5])
        steps.append(launch(StepPlan(step, [decode("a", 3 + step, token)], decoding=1)))
        # A launch queues one copy to the device, and two of what it chooses back.
        assert device.stream._done == max(0, 3 * (step - 1) + 1)
    assert [len(step.collect()) for step in steps] == [1] * 4


def test_on_a_cpu_steps_are_computed_at_once(checkpoint: Path):
    config = EngineConfig(dtype="float32", device="cpu", num_pages=20, page_size=PAGE)
    assert ModelRunner(ModelFiles(checkpoint, checkpoint, "tiny"), config).launch is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("penalties", [False, True])
def test_on_a_gpu_tokens_are_those_of_steps_computed_one_by_one(
    checkpoint: Path, penalties: bool, monkeypatch: pytest.MonkeyPatch
):
    config = EngineConfig(dtype="float32", device="cuda", num_pages=PAGES, page_size=PAGE)
    runner: Any = ModelRunner(ModelFiles(checkpoint, checkpoint, "tiny"), config)
    assert runner.launch is not None
    found = answers(runner, 0, penalties=penalties)
    monkeypatch.setattr(runner, "launch", None)
    expected = answers(runner, 0, penalties=penalties)
    assert {name: each[0] for name, each in found.items()} == {
        name: each[0] for name, each in expected.items()
    }
