"""Whoever leaves in the middle of a prefill leaves nothing behind that was not computed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from radixserve.scheduling.plan import Sampled, StepPlan
from tests.engine.computing import PROMPT, ask, engine, finish
from tests.model import tiny


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("qwen3"), "qwen3")


def variation(chance: random.Random) -> list[int]:
    """The prompt up to some token, then another end."""
    cut = chance.randrange(10, len(PROMPT))
    return PROMPT[:cut] + [chance.randrange(3, tiny.VOCABULARY) for _ in PROMPT[cut:]]


@pytest.mark.parametrize("when", ["between steps", "while a step computes"])
def test_fifty_prefills_that_were_left_at_a_random_chunk_spoil_no_later_answer(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, when: str
):
    settings = {"page_size": 4, "num_pages": 80, "max_num_batched_tokens": 11, "max_num_seqs": 4}
    reference = engine(checkpoint, **settings, prefix_cache=False)
    core = engine(checkpoint, **settings)
    chance = random.Random(when)
    execute = core.runner.execute
    leaving: list[str] = []

    def leave_and_execute(plan: StepPlan) -> list[tuple[Sampled, ...]]:
        for name in leaving:
            assert core.abort(name) is not None
        leaving.clear()
        return execute(plan)

    monkeypatch.setattr(core.runner, "execute", leave_and_execute)
    left_at: set[int] = set()
    reused = 0
    for round_ in range(50):
        prompt = variation(chance)
        ask(core, f"left{round_}", prompt)
        for _ in range(chance.randrange(len(PROMPT) // 11)):
            core.step()
        request = core.scheduler.running.get(f"left{round_}")
        left_at.add(request.computed if request is not None else 0)
        if request is not None and request.remaining > 1 and when == "while a step computes":
            leaving.append(request.id)
            core.step()
        else:
            core.abort(f"left{round_}")
        core.cache.check()
        if round_ % 5 == 0:
            expected, _ = finish(reference, f"{round_}", prompt)
            tokens, cached = finish(core, f"{round_}", prompt)
            assert tokens == expected
            reused += cached
    assert len(left_at) > 15, "prefills were left at many places"
    expected, _ = finish(reference, "last", PROMPT)
    tokens, cached = finish(core, "last", PROMPT)
    assert tokens == expected
    assert cached > 0
    assert reused > 0
    assert core.stats().finished["abort"] > 40
    assert core.cache.available == core.cache.pool.num_pages - 1
