"""An exception at every point of a step, one after the other.

Whoever is hit is told so; whoever is answered is answered right; no page is lost; and the engine
goes on to answer, or ends.
"""

from __future__ import annotations

import linecache
from collections import Counter

import pytest

from radixserve.engine.core import FAILURES
from radixserve.errors import EngineDeadError, LostError
from radixserve.tenant import Terms
from tests.faults.mix import BROKEN, SPOILT, Mix
from tests.faults.points import Point, fault, planted, points

CODE = ("engine/core.py", "scheduling", "cache")
EDGES = ("step", "add", "abort", "reset_prefix_cache", "idle", "_all_or_anew")
"""Functions in which an exception may lie outside of what takes care of it."""
SEED = 1
STEPS = pytest.mark.parametrize("overlapped", [False, True], ids=["one by one", "overlapped"])


def waits(point: Point) -> bool:
    """Whether it is the moment before a step is waited for, at which nothing of ours can fail."""
    return "launched.collect()" in linecache.getline(point.code.co_filename, point.line)


@STEPS
def test_the_mix_comes_to_all_that_a_step_can_do(overlapped: bool):
    mix = Mix(overlapped=overlapped)
    mix.run()
    mix.check_ends()
    assert set(mix.ends.values()) == {"abort", "error", "length"}
    assert {error.rpartition(": ")[2] for error in mix.errors} == {BROKEN, SPOILT}
    stats = mix.core.stats()
    assert stats.preemptions > 0
    assert stats.evicted_pages > 0
    assert stats.cached_tokens > 0
    assert (mix.model.unknown > 0) == overlapped
    mix.check_idle()
    mix.check_service()


@pytest.mark.slow
@STEPS
def test_an_exception_at_any_point_hits_whom_it_says_it_hits_and_no_later_answer(overlapped: bool):
    seen: Counter[str] = Counter()
    for point in points(lambda: Mix(overlapped=overlapped).run, CODE):
        if waits(point):
            continue
        occurrence, error = fault(point, SEED)
        what = f"{error!r} at {point}, time {occurrence}, seed {SEED}"
        mix = Mix(overlapped=overlapped)
        with planted(point, occurrence, error) as happened:
            mix.run()
        assert happened(), what
        # A step that was launched for requests that ended meanwhile may fail: nobody is hit by it.
        assert mix.told or overlapped, what
        seen["untold"] += not mix.told
        if mix.over:
            # Outside of what takes care of it: the process ends, and everybody is told.
            assert point.code.co_name in EDGES, what
            seen["over"] += 1
            continue
        mix.check_ends()
        mix.check_idle()
        mix.check_service()
        seen.update(set(mix.ends.values()))
    assert seen["lost"] > 500
    assert seen["length"] > 500
    assert seen["refused"] > 5
    assert seen["over"] < 20
    assert seen["untold"] < 10


@STEPS
def test_what_happens_while_a_fault_is_dealt_with_ends_the_engine_or_is_dealt_with(
    overlapped: bool,
):
    """Two exceptions: one in a commit, the other wherever the engine goes after that."""

    def breaking() -> Mix:
        mix = Mix(overlapped=overlapped)

        def commit(*_: object) -> None:
            del mix.core.scheduler.commit
            raise MemoryError("the first one")

        mix.core.scheduler.commit = commit
        return mix

    ends = 0
    for point in points(lambda: breaking().run, ("engine/core.py",)):
        mix = breaking()
        with planted(point, 1, RuntimeError("the second one")):
            mix.run()
        if mix.over:
            ends += 1
        else:
            mix.check_ends()
            mix.check_idle()
            mix.check_service()
    assert ends > 10


@STEPS
def test_an_engine_that_does_nothing_but_fail_is_given_up(overlapped: bool):
    mix = Mix(overlapped=overlapped)
    for count in range(FAILURES):
        mix.model.broken_step, mix.model._launch_fault = True, 1.0
        if count < FAILURES - 1:
            mix.ask_and_run(str(count), [7, 8, 9], 2)
            assert mix.ends[str(count)] == "error"
    with pytest.raises(EngineDeadError, match=f"{FAILURES} steps failed one after the other"):
        mix.ask_and_run("one more", [7, 8, 9], 2)


def test_a_step_that_works_in_between_is_a_good_sign():
    mix = Mix(overlapped=False)
    for count in range(2 * FAILURES):
        mix.model.broken_step = count % (FAILURES - 1) != 0
        mix.ask_and_run(str(count), [7, 8, 9], 2)
    assert Counter(mix.ends.values()) == {"error": 2 * FAILURES - 3, "length": 3}


@STEPS
def test_who_interrupts_a_step_at_the_keyboard_finds_an_engine_that_works(overlapped: bool):
    for point in points(lambda: Mix(overlapped=overlapped).run, ("scheduling/scheduler.py",))[::7]:
        mix = Mix(overlapped=overlapped)
        with planted(point, 1, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            mix.run()
        assert mix.core.idle
        mix.check_idle()
        mix.outputs.clear()
        mix.ends.clear()
        mix.mend()
        mix.check_service()


def test_what_was_said_of_tenants_holds_when_the_engine_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
):
    mix = Mix(overlapped=False)
    mix.core.set_tenants({"one": Terms(weight=3.0, guaranteed=0.5)})
    with monkeypatch.context() as patch:
        patch.setattr(mix.core.scheduler, "plan", lambda: 1 / 0)
        with pytest.raises(LostError, match="division by zero"):
            mix.core.step()
    assert mix.core.scheduler.accounts.of("one").weight == 3.0
    assert "one" in mix.core.stats().tenants
    assert mix.core.cache.accounts.of("one").quota.guaranteed > 0
