"""The cache that serves, and the replay without it, follow the same rule."""

from __future__ import annotations

import random

import pytest

from radixserve.cache.admission import Reuse
from radixserve.simulation.replay import Plan, least_recently_used, replay
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
    assert serve(trace, blocks, adaptive=False) == pytest.approx(expected, abs=0.02)


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
