"""The cache that serves, and the replay without it, follow the same rule."""

from __future__ import annotations

import random

import pytest

from radixserve.cache.admission import Reuse
from radixserve.cache.terms import Keeping
from radixserve.simulation.replay import Plan, least_recently_used, optimum, replay
from radixserve.simulation.served import serve
from radixserve.simulation.trace import Line, Trace


def rounds(sessions: int, requests: int, *, seconds: float) -> Trace:
    """Sessions that each ask again after ``seconds``, with one block more each time."""
    rng = random.Random(0)
    trace = Trace(block_size=10)
    for turn in range(requests):
        for session in range(sessions):
            time = seconds * (turn + session / sessions + 0.01 * rng.random())
            ids = [1000 * (session + 1) + block for block in range(10 + turn)]
            line = Line(timestamp=1000 * time, input_length=10 * len(ids) + 1, hash_ids=ids)
            trace.add(line, 1)
    return trace


@pytest.mark.parametrize("blocks", [60, 300, 900])
def test_by_age_alone_both_hit_the_same(blocks: int):
    trace = rounds(20, 20, seconds=12)
    plan = Plan.of(trace)
    expected = replay(plan, least_recently_used(plan), blocks)
    assert serve(trace, blocks) == pytest.approx(expected, abs=0.02)


def test_where_all_come_back_in_turn_patience_hits_more_than_age_alone():
    trace = rounds(20, 40, seconds=12)
    plan, blocks = Plan.of(trace), 300
    by_age = replay(plan, least_recently_used(plan), blocks)
    replayed = replay(plan, least_recently_used(plan), blocks, reuse=Reuse(blocks))
    served = serve(trace, blocks, adaptive=True)
    assert replayed > by_age + 0.15
    # Of the pages, a running request needs some that the replay can fill.
    assert by_age + 0.6 * (replayed - by_age) < served <= replayed


def test_what_does_not_fit_is_not_served():
    trace = rounds(1, 5, seconds=1)
    assert serve(trace, 12, adaptive=True) == pytest.approx(210 / (101 + 111 + 121 + 131 + 141))


def test_told_when_clients_come_back_it_keeps_those_who_come_first() -> None:
    """Of twenty sessions, all of which come back in turn, four say that they come back at once."""
    trace = rounds(20, 40, seconds=12)
    hurry = [call.end.key[0] % 5 == 0 for call in trace.calls]
    says = [Keeping(next_in=12 if each else 3600) for each in hurry]
    assert serve(trace, 300, says=says) > serve(trace, 300) + 0.15


def test_a_request_that_needs_its_pages_makes_others_go() -> None:
    """Two that are used again and fill the cache, and one between them that is not."""
    trace = Trace(block_size=1)
    for time, first in enumerate((0, 100, 200, 0, 100)):
        ids = [first + block for block in range(5)]
        trace.add(Line(timestamp=1000 * time, input_length=6, hash_ids=ids, block_size=1), 1)
    plan = Plan.of(trace)
    assert replay(plan, optimum(plan), 10) == pytest.approx(10 / 30)
    assert replay(plan, optimum(plan), 10, running=True) == pytest.approx(5 / 30)
    assert replay(plan, optimum(plan), 4, running=True) == 0.0
