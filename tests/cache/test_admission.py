"""Newcomers pass by what is likely to be used soon."""

from __future__ import annotations

import pytest

from radixserve.cache.admission import FIRST, Admission, Reuse
from radixserve.cache.clock import StepClock
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.quota import Accounts
from radixserve.tenant import OPEN, Terms
from tests.cache.serving import found, idle, order, prefill, serve, serve_as


class Server:
    """A cache of ``pages`` pages of one token, and a clock that requests move on."""

    def __init__(self, pages: int):
        self.seconds = 0.0
        self.cache = PrefixCache(pages + 1, 1, adaptive=True)

    def serve(self, *firsts: int, length: int = 4, after: float = 1.0) -> None:
        """Prompts that share nothing, one after the other."""
        for first in firsts:
            self.seconds += after
            self.cache.time = self.seconds
            step = self.cache.begin_step()
            serve(self.cache, self.prompt(first, length))
            self.cache.end_step(step)
            self.cache.check()

    def prompt(self, first: int, length: int = 4) -> range:
        return range(1000 * first, 1000 * first + length)

    def there(self, *firsts: int, length: int = 4) -> list[int]:
        """How much of each prompt is cached."""
        return [found(self.cache, self.prompt(first, length)) for first in firsts]


def test_newcomers_take_the_pages_of_newcomers() -> None:
    server = Server(12)
    server.serve(1, 2, 3)
    # What the first newcomer needs to run with is taken from the coldest; it does not stay.
    server.serve(4, 5, 6)
    assert server.there(1, 2, 3, 4, 5, 6) == [0, 4, 4, 0, 0, 4]


def test_without_it_the_coldest_go() -> None:
    cache = PrefixCache(13, 1)
    for first in range(1, 7):
        cache.end_step(cache.begin_step())
        serve(cache, range(1000 * first, 1000 * first + 4))
    assert [found(cache, range(1000 * first, 1000 * first + 4)) for first in (2, 3, 6)] == [0, 0, 4]


def test_what_is_not_young_makes_room_and_who_takes_it_stays() -> None:
    server = Server(12)
    server.serve(1, 2, 3, 4)
    server.serve(2, after=FIRST)
    # By now 3 and the newcomer are not young; 2 is.
    server.serve(5, 6)
    assert server.there(2, 3, 4, 5, 6) == [4, 0, 0, 4, 4]
    server.serve(7, 8)
    assert server.there(2, 5, 6, 7, 8) == [0, 4, 4, 0, 4]


def test_only_what_is_owed_at_the_end_becomes_a_newcomer() -> None:
    server = Server(12)
    server.serve(1, 2)
    server.serve(3, length=7)
    assert server.there(1, 2) == [1, 4]
    server.serve(4, length=3)
    assert server.there(1, 2, 3, 4, length=7) == [1, 4, 4, 3]


def test_a_request_is_never_refused_for_what_is_young() -> None:
    server = Server(12)
    server.serve(1, 2, 3)
    server.serve(4, length=12)
    assert server.there(4, length=12) == [12]
    server.cache.evict(12)
    assert idle(server.cache)
    assert server.cache.pool.free == 12


def _hits_of_one_tenant(others: str) -> list[int]:
    """What each prompt of one tenant finds, of conversations that come back after 15 s and come to
    more pages than it may have, while another tenant has traffic of its own."""
    cache = PrefixCache(81, 1, adaptive=True)
    cache.set_terms({name: Terms(guaranteed=0.5, maximum=0.5) for name in ("agents", "other")})

    def ask(tenant: str, time: float, first: int, length: int) -> int:
        cache.time = time
        step = cache.begin_step()
        hits = serve_as(cache, tenant, range(1000 * first, 1000 * first + length))
        cache.end_step(step)
        return hits

    hits = []
    for second in range(300):
        hits.append(ask("agents", second, second % 15, 4))
        if others == "repeats":
            ask("other", second + 0.3, 999, 30)
            ask("other", second + 0.6, 999, 30)
        elif others == "one-shot prompts":
            ask("other", second + 0.5, 100 + second, 9)
        cache.check()
    return hits


@pytest.mark.parametrize("others", ["repeats", "one-shot prompts"])
def test_what_one_tenant_finds_does_not_depend_on_what_others_use_again(others: str) -> None:
    alone = _hits_of_one_tenant("nothing")
    assert sum(alone[150:]) > 150, "by age alone nothing would stay until it is used again"
    assert _hits_of_one_tenant(others) == alone


def test_nobody_owes_for_pages_of_another_tenant() -> None:
    cache = PrefixCache(13, 1, adaptive=True)
    for first in range(3):
        cache.end_step(cache.begin_step())
        serve_as(cache, "other", range(1000 * first, 1000 * first + 4))
    cache.end_step(cache.begin_step())
    serve_as(cache, "agents", range(4))
    assert cache.evicted == 4
    assert [leaf.newcomer for leaf in order(cache, "agents").leaves()] == [0]


def test_a_newcomer_that_is_used_again_without_pressure_is_one_no_more() -> None:
    server = Server(12)
    server.serve(1, 2, 3, 4)
    server.serve(4, after=FIRST)
    server.serve(5, 6)
    assert server.there(4, 5, 6) == [4, 4, 4]
    server.serve(7)
    assert server.there(4, 5, 6, 7) == [0, 4, 4, 4]


def test_a_newcomer_that_is_used_again_under_pressure_stays_one() -> None:
    server = Server(12)
    server.serve(1, 2, 3, 4, 4)
    server.serve(5)
    # But for the last page, which it had to compute anew: that one is owed by nobody.
    assert server.there(2, 3, 4, 5) == [3, 4, 1, 4]


@pytest.mark.parametrize(("known", "left"), [(2, 6), (4, 10)])
def test_who_has_found_a_quarter_is_no_newcomer(known: int, left: int) -> None:
    server = Server(16)
    server.serve(1, 2, length=5)
    server.serve(3, length=known)
    server.serve(4, length=6 - known)
    server.serve(3, length=10)
    server.serve(5)
    assert server.there(3, 5, length=10) == [left, 4]


def test_the_end_of_a_newcomer_that_was_not_whole_goes_first() -> None:
    server = Server(12)
    server.serve(1, 2, 3, 4)
    prompt = [*server.prompt(4), 9]
    server.seconds += 1
    server.cache.time = server.seconds
    step = server.cache.begin_step()
    with prefill(server.cache, prompt):
        pass
    server.cache.end_step(step)
    server.cache.check()
    before = server.there(2, 3)
    server.serve(5, length=2)
    assert server.there(2, 3) == before
    assert found(server.cache, prompt) == 3


@pytest.mark.parametrize("seconds", [3.0, 8.0, 20.0])
def test_patience_lasts_until_most_are_used_again(seconds: float) -> None:
    """Half comes back after ``seconds``; the order of age would keep a tenth of it so long."""
    reuse = Reuse(1000)
    for _ in range(200):
        reuse.used(seconds, 50)
        reuse.gone(seconds / 2, 50)
        reuse.gone(0.0, 900)
    assert seconds <= reuse.patience <= 1.5 * seconds


def test_patience_is_short_where_nothing_comes_back() -> None:
    reuse = Reuse(1000)
    for _ in range(200):
        reuse.used(0.1, 20)
        reuse.gone(10.0, 400)
    assert reuse.patience == 0.0


def test_patience_follows_what_changes() -> None:
    reuse = Reuse(1000)
    for seconds in (25.0, 5.0):
        for _ in range(1000):
            reuse.used(seconds, 50)
            reuse.gone(0.0, 500)
        assert seconds <= reuse.patience <= 1.5 * seconds


def test_the_curve_knows_what_was_evicted_early() -> None:
    """Of four pages two are evicted at 5 s; of the others, one is used again at 10 s."""
    reuse = Reuse(1000)
    reuse.gone(5.0, 2)
    reuse.used(10.0, 1)
    reuse.gone(20.0, 1)
    kept, used, until = reuse.curve()[-1]
    assert used == pytest.approx(1 / 2)
    assert 10.0 < kept < until


def test_the_clock_of_steps_is_bounded_and_right() -> None:
    clock = StepClock()
    admission, account = Admission(10, clock), Accounts(10).of(OPEN)
    for step in range(1, 100_000):
        clock.now += 0.05
        clock.begin_step(step)
    assert len(clock._times) <= 16_384
    assert clock.age(99_999 - 200) == pytest.approx(10.0, abs=0.2)
    assert admission.old(account) == pytest.approx(99_999 - FIRST / 0.05, abs=3)
    clock.now += 1000
    assert admission.old(account) >= 99_999


def test_a_newcomer_is_what_somebody_leaves_and_not_what_was_there_behind_it() -> None:
    cache = PrefixCache(13, 1, adaptive=True)
    serve(cache, [1, 2, 3])
    lease = prefill(cache, [1, 2])
    lease.owed, lease.reused = 1, 0
    lease.release()
    (leaf,) = order(cache).leaves()
    assert (leaf.end, leaf.newcomer) == (3, 0)


def test_a_block_that_was_begun_is_a_newcomer_too_whatever_else_follows() -> None:
    cache = PrefixCache(13, 4, adaptive=True)
    serve(cache, [1, 2, 3, 4, 5])
    lease = prefill(cache, [1, 2, 3, 4, 6])
    lease.owed, lease.reused = 2, 0
    lease.release()
    assert sorted((leaf.end, leaf.newcomer) for leaf in order(cache).leaves()) == [(5, 0), (5, 1)]


def test_time_never_goes_back() -> None:
    cache = PrefixCache(13, 1, adaptive=True)
    cache.time = 20.5
    cache.time = 10.0
    assert (cache.time, cache.allocator.clock.now) == (20, 20.5)
