"""The loop of an engine, command by command: what comes together is taken or refused together."""

from __future__ import annotations

import queue
import time

from radixserve.cache.ghosts import Eviction
from radixserve.engine.core import EngineCore
from radixserve.engine.loop import EngineLoop
from radixserve.engine.messages import (
    Abort,
    Add,
    Command,
    GenerationRequest,
    Look,
    Looked,
    News,
    Refusal,
    StepNews,
    Stop,
)
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tenant import OPEN
from radixserve.tokens import pack
from tests.engine.looped import looped
from tests.engine.saying import PROMPT, engine

LONG_AGO = -1000.0


def add(name: str, count: int = 1, *, ago: float = 0.0) -> Add:
    """Ask for ``count`` answers of 12 tokens."""
    sequences = [
        GenerationRequest(
            id=f"{name}/{index}",
            tokens=pack([*PROMPT, ord(name[0])]),
            sampling=SamplingParams(max_tokens=12, temperature=0.0),
            sibling=f"{name}/0" if index else None,
        )
        for index in range(count)
    ]
    return Add(sequences, time.monotonic() + ago)


def run(core: EngineCore, *commands: Command) -> tuple[dict[str, int], dict[str, str]]:
    """Give ``commands``, all of which are there before the first step, and wait until the engine
    has nothing to do: the tokens of each answer, and who was refused, and how."""
    sent = looped(core, commands)
    said: dict[str, int] = {}
    for news in sent:
        for delta in news.deltas if isinstance(news, StepNews) else ():
            said[delta.id] = said.get(delta.id, 0) + len(delta.sampled)
    refused = {news.id: news.fault.kind for news in sent if isinstance(news, Refusal)}
    core.cache.check()
    assert core.cache.available == core.cache.pool.num_pages - 1
    return said, refused


def test_of_answers_that_do_not_all_find_a_place_none_is_computed():
    core = engine(max_num_seqs=1, max_queue=3)
    said, refused = run(core, add("a", 2), add("b", 3), add("c", 2))
    assert refused == {"b/2": "overloaded"}
    assert said == {"a/0": 12, "a/1": 12, "c/0": 12, "c/1": 12}


def test_of_answers_that_waited_for_too_long_none_is_computed():
    core = engine(max_num_seqs=1, queue_timeout=60)
    said, refused = run(core, add("a"), add("b", 3, ago=LONG_AGO), add("c"))
    assert refused == {"b/0": "deadline"}
    assert said == {"a/0": 12, "c/0": 12}
    assert core.stats().finished == {"length": 2, "abort": 3}


def test_the_time_before_the_engine_could_listen_counts_too_and_who_has_begun_is_left_alone():
    core = engine(max_num_seqs=1, queue_timeout=60)
    said, refused = run(core, add("a", ago=LONG_AGO), add("b", ago=LONG_AGO), add("c", ago=-30.0))
    assert refused == {"b/0": "deadline"}
    assert said == {"a/0": 12, "c/0": 12}


def test_who_has_left_is_neither_waited_for_nor_refused():
    core = engine(max_num_seqs=1, queue_timeout=60)
    said, refused = run(core, add("a"), add("b", ago=LONG_AGO), Abort("b/0"), add("c"))
    assert refused == {}
    assert said == {"a/0": 12, "b/0": 0, "c/0": 12}


def test_how_long_ago_something_was_evicted_is_right_after_an_idle_minute():
    seconds = [100.0]
    gone, other = pack(range(20, 36)), pack(range(100, 116))
    asked = [_one(gone), _one(other), Look(pack([*range(20, 36), 7]), b"", OPEN)]
    told: list[News] = []

    def get(wait: bool) -> Command:
        if not wait:
            raise queue.Empty
        if not asked:
            return Stop()
        if len(asked) == 1:  # somebody looks after a minute in which nothing happened
            seconds[0] += 60.0
        return asked.pop(0)

    core = engine(num_pages=8)
    EngineLoop(core, get, told.append, clock=lambda: seconds[0]).run()
    [looked] = [news for news in told if isinstance(news, Looked)]
    assert looked.missed == Eviction(60.0, own=True)


def _one(tokens: bytes) -> Add:
    """Compute a prompt, and nothing more."""
    sampling = SamplingParams(max_tokens=0, temperature=0.0)
    return Add([GenerationRequest(id=tokens.hex(), tokens=tokens, sampling=sampling)], 0.0)
