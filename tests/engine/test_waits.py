"""How long a request was in the queue is told once, with its first news."""

from __future__ import annotations

import asyncio
import time

from radixserve.engine.messages import Abort, Add, GenerationRequest, StepNews
from radixserve.engine.waits import Waits
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.engine.looped import looped
from tests.engine.saying import PROMPT, engine
from tests.engine.simulated import ask, collect, running
from tests.engine.timing import under_way


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plan(*ids: str, decoding: int = 0) -> StepPlan:
    rows = [Row(each, b"", 0, None) for each in ids]  # type: ignore[arg-type]
    return StepPlan(1, rows, decoding=decoding)


def test_a_wait_lasts_from_the_asking_to_the_first_step_and_is_told_once() -> None:
    clock = Clock()
    waits = Waits(clock)
    waits.begin("a", 90.0)
    waits.begin("b", 98.0)
    waits.end(plan("a"))
    clock.now = 105.0
    waits.end(plan("a", "b"))
    assert (waits.take("a"), waits.take("b")) == (10.0, 7.0)
    assert (waits.take("a"), waits.take("unknown")) == (None, None)
    assert len(waits) == 0


def test_who_ends_before_is_forgotten_and_no_wait_is_negative() -> None:
    waits = Waits(Clock())
    for name in "abc":
        waits.begin(name, 200.0)
    waits.end(plan("a", "b"))
    waits.forget("a")
    waits.forget("c")
    assert (waits.take("a"), waits.take("b")) == (None, 0.0)
    assert len(waits) == 0


def request(name: str, sibling: str | None = None) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=6, temperature=0.0)
    return GenerationRequest(id=name, tokens=pack(PROMPT), sampling=sampling, sibling=sibling)


def test_each_prompts_first_news_say_it_and_nothing_is_kept() -> None:
    core = engine(max_num_seqs=3)
    asked = time.monotonic() - 50.0
    commands = [
        Add([request("a"), request("a2", "a")], asked),
        Add([request("b")], asked),
        Add([request("c")], asked),
        Abort("c"),
    ]
    sent = looped(core, commands)
    deltas = [delta for news in sent if isinstance(news, StepNews) for delta in news.deltas]
    told = {delta.id: delta.waited for delta in deltas if delta.waited is not None}
    assert told.keys() == {"a", "b"}
    assert all(50.0 <= waited < 500.0 for waited in told.values())
    firsts = {delta.id: delta for delta in reversed(deltas)}
    assert [firsts[each].waited for each in ("a", "b")] == [told["a"], told["b"]]
    assert sum(delta.waited is not None for delta in deltas) == 2
    assert len(core.waits) == 0


def test_who_waits_for_a_place_has_waited_for_longer(tmp_path):
    async def scenario() -> None:
        async with running(tmp_path, max_num_seqs=1) as (served, model, tokenizer):
            model.hold()
            asking = [ask(tokenizer, name=name) for name in ("first", "second")]
            tasks = [asyncio.create_task(collect(served, each)) for each in asking]
            await under_way(served, 2)
            model.free()
            first, second = await asyncio.gather(*tasks)
            assert first[0].waited is not None
            assert second[0].waited is not None
            assert first[0].waited < second[0].waited
            assert {delta.waited for delta in (*first[1:], *second[1:])} == {None}

    asyncio.run(scenario())
