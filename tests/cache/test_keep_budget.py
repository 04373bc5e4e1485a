"""How much is kept, at whose cost, and what is counted of it."""

from __future__ import annotations

from radixserve.cache.terms import KeepCounts, Keeping, Kept, KeptPages, Mark, term
from radixserve.tenant import OPEN, Terms
from radixserve.tokens import pack
from tests.cache.serving import cache_of, found, held, keep, prefill, serve


def test_beyond_the_budget_the_front_is_kept_and_it_is_said() -> None:
    cache = cache_of(16, keep=0.25)
    assert keep(cache, range(32), (32, 60)) == Kept("partial", 16)
    assert held(cache) == 4
    assert keep(cache, range(100, 108), (8, 60)) == Kept("refused", 0)
    assert held(cache) == 4
    cache.time = 60
    assert keep(cache, range(100, 108), (8, 60)) == Kept("granted", 8)


def test_one_mark_granted_and_one_refused_is_partial() -> None:
    cache = cache_of(16, keep=0.25)
    assert keep(cache, range(32), (16, 60), (32, 60)) == Kept("partial", 16)


def test_the_open_block_is_the_first_that_there_is_no_room_for() -> None:
    cache = cache_of(16, keep=0.25)
    assert keep(cache, range(18), (18, 60)) == Kept("partial", 16)
    assert held(cache) == 4


def test_what_two_keep_is_counted_once() -> None:
    cache = cache_of(16, keep=0.25)
    trunk = [*range(12)]
    assert keep(cache, [*trunk, 50, 51, 52, 53], (16, 60)) == Kept("granted", 16)
    assert keep(cache, [*trunk, 60, 61, 62, 63], (12, 60)) == Kept("granted", 12)
    assert keep(cache, [*trunk, 60, 61, 62, 63], (16, 60)) == Kept("partial", 12)
    assert held(cache) == 4


def test_what_had_to_go_gives_its_budget_back() -> None:
    cache = cache_of(16, keep=0.25)
    keep(cache, range(16), (16, 60))
    assert cache.evict(2) == 2
    assert held(cache) == 2
    cache.evict(cache.pool.num_pages)
    assert held(cache) == 0
    assert keep(cache, range(100, 116), (16, 60)) == Kept("granted", 16)


def test_keeping_never_costs_another_tenant_a_page() -> None:
    """Whose pages go is a matter of shares; only which of them is the tenant's own to say."""
    lost = []
    for seconds in (0, 60):
        cache = cache_of(16)
        cache.set_terms({"a": Terms(guaranteed=0.25), "b": Terms(guaranteed=0.25)})
        lease = prefill(cache, range(32), b"a", tenant="a")
        cache.finish(lease, Keeping((Mark(32, seconds),) if seconds else ()))
        serve(cache, range(100, 132), b"b", tenant="b")
        serve(cache, range(200, 216), b"b", tenant="b")
        cache.check()
        lost.append((found(cache, range(32), b"a"), found(cache, range(200, 216), b"b")))
    assert lost[0] == lost[1]


def test_a_tenants_budget_is_a_part_of_its_own_maximum() -> None:
    cache = cache_of(16, keep=0.5)
    cache.set_terms({"a": Terms(maximum=0.5), "b": Terms(maximum=0.5, keep=0.125)})
    assert keep(cache, range(32), (32, 60), namespace=b"a", tenant="a") == Kept("partial", 16)
    assert keep(cache, range(32), (32, 60), namespace=b"b", tenant="b") == Kept("partial", 4)
    assert (held(cache, "a"), held(cache, "b")) == (4, 1)


def test_a_budget_that_shrinks_takes_nothing_back_and_grants_nothing_new() -> None:
    cache = cache_of(16)
    keep(cache, range(16), (16, 60))
    cache.set_terms({OPEN: Terms(keep=0.125)})
    assert held(cache) == 4
    assert keep(cache, range(16), (16, 90)) == Kept("granted", 16)
    assert keep(cache, range(100, 104), (4, 60)) == Kept("refused", 0)


def test_a_public_prefix_is_kept_at_nobodys_cost() -> None:
    cache = cache_of(16, keep=0.125)
    cache.set_public([pack(range(8))])
    assert keep(cache, range(16), (16, 60), namespace=b"a", tenant="a") == Kept("granted", 16)
    assert held(cache, "a") == 2
    assert keep(cache, range(16), (6, 60), namespace=b"b", tenant="b") == Kept("granted", 6)
    assert held(cache, "b") == 0
    assert cache.accounts.public.kept.total(0) == 2


def test_pages_are_counted_by_when_they_are_over() -> None:
    kept = KeptPages()
    assert not kept
    kept.move(5, 0, term(0, 10))
    kept.move(3, 0, term(0, 20))
    assert (kept.total(0), kept.total(9)) == (8, 8)
    assert kept.by_end() == {10: 5, 20: 3}
    kept.move(2, term(0, 20), term(5, 20))
    assert kept.by_end() == {10: 5, 20: 1, 25: 2}
    assert kept.total(10) == 3
    kept.move(5, term(0, 10), 0)
    assert (kept.total(10), kept.total(25)) == (3, 0)
    kept.move(4, 0, term(5, 20))  # which is over
    assert kept.by_end() == {}
    kept.move(4, term(5, 20), term(25, 5))
    assert kept.by_end() == {30: 4}


def test_times_that_are_over_are_counted_once_and_hits_that_begin_them_anew_too() -> None:
    cache = cache_of(16)
    counts = cache.accounts.keeps
    keep(cache, range(8), (8, 60))
    assert counts == KeepCounts()
    cache.time = 50
    serve(cache, [*range(8), 50])
    assert (counts.refreshed, counts.expired) == (1, 0)
    cache.time = 110
    serve(cache, [*range(8), 50])
    cache.evict(cache.pool.num_pages)
    assert (counts.refreshed, counts.expired, held(cache)) == (1, 2, 0)


def test_why_something_is_not_kept_is_counted_once_a_request() -> None:
    cache = cache_of(16, keep=0.25)
    assert keep(cache, range(32), (24, 60), (32, 60)) == Kept("partial", 16)
    lease = cache.acquire(bytearray(pack(range(16))), b"")
    assert cache.finish(lease, Keeping((Mark(20, 60),))) == Kept("partial", 12)
    lease = cache.reserve(pack(range(16)), b"", 0, keep=False)
    assert lease is not None
    assert cache.finish(lease, Keeping((Mark(8, 60),))) == Kept("refused", 0)
    assert cache.accounts.keeps.refused == {"budget": 1, "unfinished": 1, "uncached": 1}
