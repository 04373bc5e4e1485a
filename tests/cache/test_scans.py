"""Many prompts that nobody asks again, and that do not fit together, behind one that is hot."""

from __future__ import annotations

import pytest

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.terms import Keeping, Mark
from tests.cache.serving import found, prefill, serve

PAGES, PAGE = 64, 4
HOT = range(32)
ONCE = 50


class Server:
    """A cache and a clock; each request takes 0.1 seconds."""

    def __init__(self, *, adaptive: bool = False):
        self.now = 0.0
        self.cache = PrefixCache(PAGES + 1, PAGE, keep=0.5, adaptive=adaptive)

    def ask(self, tokens: range, keep: Keeping | None = None) -> int:
        """A whole request; returns how many tokens it reused."""
        self.now += 0.1
        self.cache.time = self.now
        step = self.cache.begin_step()
        lease = prefill(self.cache, tokens)
        reused = lease.reused
        if keep is None:
            lease.release()
        else:
            self.cache.finish(lease, keep, reused)
        self.cache.end_step(step)
        self.cache.check()
        return reused

    def scan(self, first: int = 0, prompts: int = ONCE) -> None:
        for number in range(first, first + prompts):
            assert self.ask(range(1000 * (number + 1), 1000 * (number + 1) + 12)) == 0


def test_by_age_alone_a_scan_takes_what_is_hot() -> None:
    server = Server()
    assert [server.ask(HOT) for _ in range(5)] == [0, *[len(HOT) - 1] * 4]
    server.scan()
    assert found(server.cache, HOT) == 0


def test_by_age_what_is_used_within_each_turn_of_the_pool_stays() -> None:
    server = Server()
    server.ask(HOT)
    for number in range(0, ONCE, 10):
        server.scan(number, 10)
        assert server.ask(HOT) == len(HOT) - 1


def test_what_is_kept_outlives_a_scan() -> None:
    server = Server()
    server.ask(HOT, Keeping((Mark(len(HOT), 300),)))
    for _ in range(4):
        server.ask(HOT)
    server.scan()
    assert server.ask(HOT) == len(HOT) - 1


@pytest.mark.parametrize(("apart", "stays"), [(10.0, True), (0.1, False)])
def test_newcomers_pass_by_what_came_back_after_as_long_before(apart: float, stays: bool) -> None:
    """A scan takes 5 seconds. What always came back at once and then no more is not waited for."""
    server = Server(adaptive=True)
    for number in range(5):
        server.now += apart
        server.scan(ONCE + number, 1)  # The first newcomer to pass by takes of what is coldest.
        server.ask(HOT)
    server.scan()
    assert (found(server.cache, HOT) == len(HOT)) == stays


def test_what_is_asked_often_in_one_burst_and_never_again_is_not_hot_for_ever() -> None:
    cache = PrefixCache(PAGES + 1, PAGE)
    burst = range(500, 532)
    for _ in range(50):
        serve(cache, burst)
    for number in range(ONCE):
        cache.end_step(cache.begin_step())
        serve(cache, range(1000 * (number + 1), 1000 * (number + 1) + 12))
        serve(cache, HOT)
    assert found(cache, burst) == 0
    assert found(cache, HOT) == len(HOT)
