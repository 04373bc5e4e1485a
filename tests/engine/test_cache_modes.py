"""Requests that go around the cache: what they take, and what they leave."""

from __future__ import annotations

import pytest

from radixserve.engine.core import EngineCore
from radixserve.engine.messages import CacheMode
from tests.engine.saying import PROMPT, add, engine, run


def reused(core: EngineCore, name: str, mode: CacheMode) -> int:
    add(core, name, mode)
    return run(core, name)[name][1]


def test_off_takes_nothing_and_leaves_nothing():
    core = engine()
    assert reused(core, "a", "off") == 0
    assert core.stats().pages_evictable == 0
    assert reused(core, "b", "on") == 0
    before = core.stats()
    assert reused(core, "c", "off") == 0
    assert core.stats().pages_evictable == before.pages_evictable
    assert reused(core, "d", "on") == len(PROMPT) - 1


def test_read_only_takes_and_leaves_nothing():
    core = engine()
    assert reused(core, "a", "read-only") == 0
    assert core.stats().pages_evictable == 0
    reused(core, "b", "on")
    before = core.stats().pages_evictable
    assert reused(core, "c", "read-only") == len(PROMPT) - 1
    assert core.stats().pages_evictable == before


def test_what_is_left_in_the_cache_is_told():
    core = engine()
    for mode, written in (("read-only", 0), ("off", 0), ("on", len(PROMPT)), ("on", 1)):
        add(core, "a", mode)  # type: ignore[arg-type]
        [first, *_] = core.step()
        assert first.usage.written_tokens == written
        run(core, "a", begun=[first])
    core = engine(prefix_cache=False)
    add(core, "a", "on")
    assert core.step()[0].usage.written_tokens == 0


@pytest.mark.parametrize("leader", ["off", "read-only"])
@pytest.mark.parametrize("other", ["on", "read-only", "off"])
def test_those_who_leave_nothing_are_not_waited_for(leader: CacheMode, other: CacheMode):
    core = engine(max_num_batched_tokens=32)
    add(core, "leader", leader)
    core.step()
    add(core, "other", other)
    begun = core.step()
    assert set(core.scheduler.running) == {"leader", "other"}
    found = run(core, "leader", "other", begun=begun)
    assert [cached for _, cached in found.values()] == [0, 0]


def test_one_that_takes_nothing_does_not_wait_for_what_others_compute():
    core = engine(max_num_batched_tokens=64)
    add(core, "leader", "on")
    add(core, "follower", "off")
    core.step()
    assert "follower" in core.scheduler.running


@pytest.mark.parametrize("mode", ["off", "read-only"])
def test_several_answers_share_one_prefill_and_leave_nothing(mode: CacheMode):
    core = engine()
    for index in range(3):
        add(core, f"r/{index}", mode, sibling="r/0" if index else None)
    run(core, "r/0", "r/1", "r/2")
    assert core.stats().computed_tokens == len(PROMPT) + 3 * 11
    assert core.stats().pages_free == core.stats().pages_total


def test_they_come_back_after_preemption():
    core = engine(num_pages=1 + 2 * 12)
    for name in "abcd":
        add(core, name, "off")
    run(core, *"abcd")
    assert core.stats().preemptions > 0
    assert core.stats().pages_free == core.stats().pages_total
