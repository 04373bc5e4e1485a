"""A request that cannot begin before its deadline is refused when it comes, and no other is."""

from __future__ import annotations

import queue
import random
from dataclasses import dataclass, field

from radixserve.engine.core import EngineCore
from radixserve.engine.loop import EngineLoop
from radixserve.engine.messages import (
    Add,
    Command,
    GenerationRequest,
    News,
    Refusal,
    StepNews,
    Stop,
)
from radixserve.engine.pace import ENOUGH, STEPS, Pace
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.engine.saying import engine

SECONDS = 0.01
"""What each token takes on the clock of these tests."""
BUDGET = 16


def prompt(length: int, seed: int = 0) -> bytes:
    chance = random.Random(seed)
    return pack([chance.randrange(20, 90) for _ in range(length)])


@dataclass
class Asked:
    """A request that comes once so many tokens have been computed."""

    name: str
    tokens: bytes
    after: int = 0
    within: float | None = None
    """Seconds from then on until which it is waited for."""
    tenant: str = ""


@dataclass
class Outcome:
    reused: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    computed: int = 0


def run(*asked: Asked, **settings: int) -> Outcome:
    core = engine(400, max_num_batched_tokens=BUDGET, **settings)
    left = list(asked)
    sent: list[News] = []
    totals = core.scheduler.totals

    def clock() -> float:
        return totals.computed_tokens * SECONDS

    def get(wait: bool) -> Command:
        if left and (wait or left[0].after <= totals.computed_tokens):
            return add(left.pop(0), clock())
        if not wait:
            raise queue.Empty
        return Stop()

    EngineLoop(core, get, sent.append, clock=clock).run()
    return outcome(core, sent)


def add(asked: Asked, now: float) -> Add:
    request = GenerationRequest(
        id=asked.name,
        tokens=asked.tokens,
        sampling=SamplingParams(max_tokens=2, temperature=0.0),
        deadline=None if asked.within is None else now + asked.within,
        tenant=asked.tenant,
    )
    return Add([request], now)


def outcome(core: EngineCore, sent: list[News]) -> Outcome:
    made = Outcome(computed=core.scheduler.totals.computed_tokens)
    for news in sent:
        if isinstance(news, Refusal):
            made.refused[news.id] = news.fault.kind
        for delta in news.deltas if isinstance(news, StepNews) else ():
            made.reused[delta.id] = delta.usage.cached_tokens
    core.cache.check()
    assert core.cache.available == core.cache.pool.num_pages - 1
    return made


MEASURED = ENOUGH * BUDGET
WARM = Asked("warm", prompt(MEASURED + 40))


def test_a_prompt_that_takes_longer_than_it_is_waited_for_is_refused_when_it_comes():
    made = run(
        WARM,
        Asked("hopeless", prompt(300, seed=1), MEASURED + 40, within=2.0),
        Asked("patient", prompt(300, seed=2), MEASURED + 40, within=4.0),
        Asked("endless", prompt(300, seed=3), MEASURED + 40),
    )
    assert made.refused == {"hopeless": "deadline"}
    assert set(made.reused) == {"warm", "patient", "endless"}
    assert made.computed < 3 * 300 + MEASURED, "something of it was computed"


def test_what_runs_before_it_counts():
    made = run(
        WARM,
        Asked("long", prompt(300, seed=1), MEASURED + 40),
        Asked("hopeless", prompt(20, seed=2), MEASURED + 60, within=2.0),
        Asked("patient", prompt(20, seed=3), MEASURED + 60, within=4.0),
    )
    assert made.refused == {"hopeless": "deadline"}


def test_what_waits_before_it_counts_only_where_it_surely_goes_before():
    made = run(
        WARM,
        Asked("running", prompt(60, seed=1), MEASURED + 40),
        Asked("earlier", prompt(200, seed=2), MEASURED + 50, within=3.0),
        Asked("whenever", prompt(200, seed=3), MEASURED + 50),
        Asked("stranger", prompt(200, seed=4), MEASURED + 50, within=2.9, tenant="other"),
        # Only ``running`` is known to be before it, and those were not looked up yet.
        Asked("hopeful", prompt(20, seed=5), MEASURED + 50, within=3.1),
        max_num_seqs=1,
    )
    assert "hopeful" not in made.refused


def test_what_is_cached_takes_no_time():
    made = run(
        Asked("before", prompt(300, seed=1)),
        Asked("again", prompt(300, seed=1), 310, within=0.5),
    )
    assert made.refused == {}
    assert made.reused["again"] == 299


def test_what_somebody_computes_already_counts_once():
    made = run(
        WARM,
        Asked("leader", prompt(300, seed=1), MEASURED + 40),
        Asked("follower", prompt(300, seed=1), MEASURED + 80, within=3.5),
    )
    assert made.refused == {}
    assert made.reused["follower"] > 200


def test_nobody_is_refused_before_it_is_known_how_fast_steps_are():
    made = run(Asked("first", prompt(300), within=0.001))
    assert made.refused == {}


def test_what_comes_after_its_time_is_refused_even_so():
    made = run(Asked("late", prompt(20), within=-1.0))
    assert made.refused == {"late": "deadline"}


def test_steps_that_compute_little_say_nothing_of_the_pace():
    pace = Pace(budget=100)
    for _ in range(STEPS):
        pace.note(5, 1.0)
    assert pace.rate is None


def test_the_pace_is_that_of_the_best_of_the_latest_steps():
    pace = Pace(budget=100)
    pace.note(100, 0.1)
    for _ in range(ENOUGH - 2):
        pace.note(100, 1.0)
    assert pace.rate is None
    pace.note(50, 1.0)
    assert pace.rate == 1000
    for _ in range(STEPS):
        pace.note(100, 2.0)
    assert pace.rate == 50
