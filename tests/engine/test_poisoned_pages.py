"""What nobody has written is never read, and it does not matter which pages a sequence gets.

Before every step each page that belongs to no one is filled with NaN, in all layers: one read of a
freed, stale or not yet written slot and an answer is not a number any more.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from radixserve.engine.core import EngineCore
from radixserve.engine.messages import GenerationRequest
from radixserve.model.runner import ModelRunner
from radixserve.scheduling.plan import Sampled, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.engine.computing import engine
from tests.model import tiny

STEM = [(41 * i * i + 3 * i + 7) % tiny.VOCABULARY for i in range(60)]
PROMPTS = [STEM, STEM[:37], [*STEM[:30], 5, 6, 7], STEM[5:50], [*STEM[:18], *STEM[40:]], STEM]
SAMPLING = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, logprobs=2)
Answers = list[tuple[list[int], list[float]]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def uncached(checkpoint: Path) -> Answers:
    """Each prompt alone, without a prefix cache, on memory that begins as zeros."""
    core = engine(checkpoint, page_size=4, num_pages=40, prefix_cache=False)
    runner(core)._storage.kv.zero_()
    return [answers(core, [prompt])[0] for prompt in PROMPTS]


def runner(core: EngineCore) -> ModelRunner:
    assert isinstance(core.runner, ModelRunner)
    return core.runner


def answers(core: EngineCore, prompts: list[list[int]]) -> Answers:
    """Tokens and logprobs of the greedy answers, all asked for at once."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    first = core.stats().steps
    for index, prompt in enumerate(prompts):
        name = f"{first}/{index}"
        found[name] = ([], [])
        core.add(GenerationRequest(id=name, tokens=pack(prompt), sampling=SAMPLING))
    while not core.idle:
        for delta in core.step():
            assert delta.error is None
            for sampled in delta.sampled:
                assert sampled.logprob is not None
                found[delta.id][0].append(sampled.token)
                found[delta.id][1].append(sampled.logprob)
    return list(found.values())


def assert_same(found: Answers, expected: Answers) -> None:
    for (tokens, logprobs), (right, their_logprobs) in zip(found, expected, strict=True):
        assert tokens == right
        assert logprobs == pytest.approx(their_logprobs, abs=1e-4)


def before_each_step(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch, call: Callable[[StepPlan], None]
) -> None:
    execute = runner(core).execute

    def execute_after(plan: StepPlan) -> list[tuple[Sampled, ...]]:
        call(plan)
        return execute(plan)

    monkeypatch.setattr(core.runner, "execute", execute_after)


def test_answers_do_not_change_when_every_unused_page_is_poisoned_before_every_step(
    checkpoint: Path, uncached: Answers, monkeypatch: pytest.MonkeyPatch
):
    core = engine(checkpoint, page_size=4, num_pages=34, max_num_batched_tokens=24, max_num_seqs=4)
    kv = runner(core)._storage.kv
    kv.fill_(math.nan)
    used: set[int] = set()
    poisoned_after_use: set[int] = set()

    def poison(plan: StepPlan) -> None:
        unused = core.cache.pool.idle()
        poisoned_after_use.update(used.intersection(unused))
        used.update(page for row in plan.rows for page in row.pages)
        kv[:, unused] = math.nan

    before_each_step(core, monkeypatch, poison)
    for cold in (33, 7, 7, 3):
        assert_same(answers(core, PROMPTS), uncached)
        core.cache.evict(cold)
    stats = core.stats()
    assert stats.cached_tokens > 0
    assert stats.preemptions > 0
    assert len(poisoned_after_use) > 12, "many pages were used and free again at some time"


def test_scattered_pages_give_the_answers_of_contiguous_ones(
    checkpoint: Path, uncached: Answers, monkeypatch: pytest.MonkeyPatch
):
    core = engine(checkpoint, page_size=4, num_pages=200, max_num_batched_tokens=24, max_num_seqs=4)
    random.Random(3).shuffle(core.cache.pool._free)
    neighbours = [0, 0]

    def look(plan: StepPlan) -> None:
        for row in plan.rows:
            for page, following in pairwise(row.pages):
                neighbours[following - page == 1] += 1

    before_each_step(core, monkeypatch, look)
    assert_same(answers(core, PROMPTS), uncached)
    cold = core.stats().cached_tokens
    assert_same(answers(core, PROMPTS), uncached)
    assert core.stats().cached_tokens - cold == sum(len(prompt) - 1 for prompt in PROMPTS)
    scattered, contiguous = neighbours
    assert scattered > 20 * contiguous
