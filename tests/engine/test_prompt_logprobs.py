"""Logprobs of prompts are those of transformers' logits, on cold and on warm prompts."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from radixserve.config import EngineConfig
from radixserve.engine.core import EngineCore
from radixserve.engine.messages import CacheMode, GenerationDelta, GenerationRequest
from radixserve.model.loader import ModelFiles
from radixserve.model.ranks import load
from radixserve.scheduling.draft import Draft
from radixserve.scheduling.plan import Sampled
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.engine.computing import engine
from tests.model import tiny

TOP = 3
STEM = [(37 * i * i + 11 * i + 5) % tiny.VOCABULARY for i in range(45)]
PROMPTS = [STEM[:40], STEM[:40], [*STEM[:33], 7, 8, 9], [9, *STEM[:20]], STEM, [5]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


def queue(
    core: EngineCore, name: str, prompt: list[int], cache: CacheMode = "on", **sampling: object
) -> None:
    chosen = {"temperature": 0.0, "max_tokens": 3, "ignore_eos": True, "prompt_logprobs": TOP}
    core.add(
        GenerationRequest(
            id=name,
            tokens=pack(prompt),
            sampling=SamplingParams(**{**chosen, **sampling}),
            cache=cache,
        )
    )


def finish(core: EngineCore) -> dict[str, list[GenerationDelta]]:
    """All that is told of each request; the ledger is checked after every step."""
    deltas: dict[str, list[GenerationDelta]] = defaultdict(list)
    while not core.idle:
        for delta in core.step():
            assert delta.error is None
            deltas[delta.id].append(delta)
        core.cache.check()
    return deltas


def scores(deltas: list[GenerationDelta]) -> list[Sampled]:
    """Of a prompt; none of them comes after a token of the answer."""
    told = [not delta.scored for delta in deltas if delta.scored or delta.sampled]
    assert told == sorted(told)
    return [each for delta in deltas for each in delta.scored]


def expect(plain: torch.nn.Module, prompt: list[int], told: list[Sampled], start: int = 1) -> None:
    with torch.inference_mode():
        logits = plain(torch.tensor([prompt])).logits[0].double()
    logprobs = torch.log_softmax(logits, -1)[start - 1 : -1]
    assert [each.token for each in told] == prompt[start:]
    for entry, row in zip(told, logprobs, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token].item(), abs=1e-4)
        assert entry.rank == 1 + int((row > row[entry.token]).sum())
        values, order = row.sort(descending=True)
        assert [token for token, _ in entry.top] == order[:TOP].tolist()
        assert [value for _, value in entry.top] == pytest.approx(values[:TOP].tolist(), abs=1e-4)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("chunk", [1, 7, 512])
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["cached", "uncached"])
def test_cold_and_warm_prompts_have_the_logprobs_of_transformers(
    checkpoint: Path, plain: torch.nn.Module, page_size: int, chunk: int, prefix_cache: bool
):
    settings = {"page_size": page_size, "num_pages": 1200 // page_size}
    core = engine(
        checkpoint,
        **settings,
        max_num_batched_tokens=chunk,
        max_num_seqs=min(chunk, 8),
        prefix_cache=prefix_cache,
    )
    answers = []
    for _ in range(2):
        for index, prompt in enumerate(PROMPTS):
            queue(core, str(index), prompt)
        deltas = finish(core)
        for index, prompt in enumerate(PROMPTS):
            expect(plain, prompt, scores(deltas[str(index)]))
            # All positions were computed, and usage says so.
            assert deltas[str(index)][-1].usage.cached_tokens == 0
        answers.append([[e.token for d in each for e in d.sampled] for each in deltas.values()])
    assert answers[0] == answers[1]


def test_what_was_computed_for_logprobs_is_reused_by_others(checkpoint: Path):
    core = engine(checkpoint, page_size=4)
    queue(core, "scored", STEM)
    finish(core)
    queue(core, "plain", STEM, prompt_logprobs=None)
    [*_, last] = finish(core)["plain"]
    assert last.usage.cached_tokens == len(STEM) - 1


@pytest.mark.parametrize("cache", ["read-only", "off"])
def test_every_mode_of_the_cache_gives_the_same(
    checkpoint: Path, plain: torch.nn.Module, cache: CacheMode
):
    core = engine(checkpoint, page_size=4)
    queue(core, "warms", STEM, prompt_logprobs=None)
    finish(core)
    queue(core, "scored", STEM, cache)
    expect(plain, STEM, scores(finish(core)["scored"]))


@pytest.mark.parametrize("start", [1, 2, 17, 44, 45, 1000])
def test_what_comes_before_the_first_logprob_is_reused(
    checkpoint: Path, plain: torch.nn.Module, start: int
):
    core = engine(checkpoint, page_size=4)
    queue(core, "warms", STEM, prompt_logprobs=None)
    finish(core)
    queue(core, "scored", STEM, prompt_logprobs_start=start)
    deltas = finish(core)["scored"]
    expect(plain, STEM, scores(deltas), min(start, len(STEM)))
    assert deltas[-1].usage.cached_tokens == min(start, len(STEM)) - 1


def test_preemption_neither_loses_nor_repeats_any(checkpoint: Path, plain: torch.nn.Module):
    core = engine(checkpoint, page_size=2, num_pages=45, max_num_batched_tokens=5, max_num_seqs=4)
    for round_ in range(3):
        for index, prompt in enumerate(PROMPTS):
            queue(core, f"{round_}-{index}", prompt, max_tokens=20)
        deltas = finish(core)
        for index, prompt in enumerate(PROMPTS):
            expect(plain, prompt, scores(deltas[f"{round_}-{index}"]))
    assert core.stats().preemptions > 0


def test_a_prompt_that_steps_back_in_the_middle_goes_on_where_it_was(
    checkpoint: Path, plain: torch.nn.Module
):
    core = engine(
        checkpoint,
        page_size=2,
        num_pages=40,
        max_num_batched_tokens=8,
        max_num_seqs=4,
        scheduling_policy="priority",
    )
    queue(core, "low", STEM)
    told = [delta for _ in range(3) for delta in core.step()]
    before = core.stats().computed_tokens
    core.add(
        GenerationRequest(
            id="high",
            tokens=pack([7] * 60),
            sampling=SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True),
            priority=-1,
        )
    )
    deltas = finish(core)
    assert core.stats().preemptions > 0
    assert before == 24
    expect(plain, STEM, scores(told + deltas["low"]))


def test_no_step_scores_more_than_it_has_room_for(
    checkpoint: Path, plain: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("radixserve.scheduling.scheduler.Draft", partial(Draft, scores=16))
    core = engine(checkpoint, page_size=4)
    most: list[int] = []
    execute = core.runner.execute

    def watched(plan):
        most.append(sum(len(row.scores) for row in plan.rows))
        return execute(plan)

    core.runner.execute = watched
    for index, prompt in enumerate(PROMPTS):
        queue(core, str(index), prompt)
    deltas = finish(core)
    for index, prompt in enumerate(PROMPTS):
        expect(plain, prompt, scores(deltas[str(index)]))
    assert max(most) == 16


@pytest.mark.parametrize("seats", [1, 4])
def test_the_answers_to_one_prompt_are_told_of_it_once(
    checkpoint: Path, plain: torch.nn.Module, seats: int
):
    # With one seat the second cannot fork, and computes what is left by itself.
    core = engine(checkpoint, page_size=4, max_num_seqs=seats)
    sampling = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=TOP)
    for index, sibling in enumerate([None, "n/0", "n/0"]):
        core.add(
            GenerationRequest(
                id=f"n/{index}", tokens=pack(STEM), sampling=sampling, sibling=sibling
            )
        )
    deltas = finish(core)
    expect(plain, STEM, scores(deltas["n/0"]))
    assert not scores(deltas["n/1"] + deltas["n/2"])
    assert core.stats().computed_tokens <= len(STEM) + 2 * 3 + 3 * 3


def test_no_tokens_need_be_generated(checkpoint: Path, plain: torch.nn.Module):
    core = engine(checkpoint, page_size=4)
    for index, prompt in enumerate(PROMPTS):
        queue(core, str(index), prompt, max_tokens=0)
    deltas = finish(core)
    for index, prompt in enumerate(PROMPTS):
        told = deltas[str(index)]
        expect(plain, prompt, scores(told))
        assert told[-1].finish == "length"
        assert told[-1].usage.completion_tokens == 0
        assert not any(delta.sampled for delta in told)
    assert core.stats().generated_tokens == 0


def test_a_prompt_is_only_computed_where_nothing_else_is_asked_for(checkpoint: Path):
    core = engine(checkpoint, page_size=4)
    queue(core, "prewarms", STEM, max_tokens=0, prompt_logprobs=None)
    [only] = finish(core)["prewarms"]
    assert (only.finish, only.sampled, only.scored) == ("length", (), ())
    queue(core, "warm", STEM, prompt_logprobs=None)
    assert finish(core)["warm"][-1].usage.cached_tokens == len(STEM) - 1


def test_the_logprobs_of_an_answer_are_those_of_the_same_tokens_in_a_prompt(checkpoint: Path):
    core = engine(checkpoint, page_size=4)
    queue(core, "answer", STEM, max_tokens=12, logprobs=TOP)
    generated = [each for delta in finish(core)["answer"] for each in delta.sampled]
    prompt = STEM + [each.token for each in generated]
    queue(core, "scored", prompt, prompt_logprobs_start=len(STEM))
    told = scores(finish(core)["scored"])
    assert [each.token for each in told] == [each.token for each in generated]
    for mine, theirs in zip(told, generated, strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert mine.rank == 1
        assert dict(mine.top) == pytest.approx(dict(theirs.top), abs=1e-4)


def test_two_ranks_give_what_one_gives(checkpoint: Path, plain: torch.nn.Module):
    config = EngineConfig(
        dtype="float32",
        device="cpu",
        threads=1,
        num_pages=100,
        page_size=4,
        max_num_batched_tokens=16,
        max_num_seqs=4,
        tensor_parallel_size=2,
    )
    runner = load(ModelFiles(checkpoint, checkpoint, "tiny"), config)
    try:
        core = EngineCore(config, runner)
        queue(core, "scored", STEM)
        expect(plain, STEM, scores(finish(core)["scored"]))
    finally:
        runner.close()


def test_a_prompt_whose_logits_are_no_numbers_fails_alone(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    core = engine(checkpoint, page_size=4, max_num_batched_tokens=8, max_num_seqs=4)
    compute = core.runner.compute

    def spoilt(copies, batch):
        logits = compute(copies, batch).clone()
        logits[len(logits) - batch.scored] = float("nan")
        return logits

    queue(core, "sound", STEM[:8], prompt_logprobs=None, max_tokens=9)
    core.step()
    queue(core, "spoilt", STEM)
    monkeypatch.setattr(core.runner, "compute", spoilt)
    [failed] = [delta for delta in core.step() if delta.id == "spoilt" and delta.finish]
    monkeypatch.undo()
    assert failed.finish == "error"
    assert "not a number" in failed.error
    assert [delta.finish for delta in finish(core)["sound"]][-1] == "length"
