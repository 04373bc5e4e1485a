"""What is public goes last, and purges leave it to others."""

from __future__ import annotations

import pytest

from radixserve.tenant import Terms
from radixserve.tokens import pack
from tests.cache.serving import append, compute, found, idle, prefill, public, serve_as

PROMPT = list(range(8))
"""Two blocks of four."""


def test_a_public_prefix_is_evicted_last_and_only_after_what_follows_it() -> None:
    cache = public(PROMPT, num_pages=11)
    serve_as(cache, "a", [*PROMPT, *range(100, 108)])
    serve_as(cache, "b", range(200, 220))
    cache.end_step(cache.begin_step())
    cache.evict(2 + 5)
    assert found(cache, [*PROMPT, 1], b"c") == 8
    cache.check()
    cache.evict(1)
    assert found(cache, [*PROMPT, 1], b"c") == 4
    cache.evict(100)
    assert cache.pool.free == 10
    assert (cache.tree.roots, cache.tree.hung, cache.tree.nodes) == ({}, {}, 0)
    cache.check()


def test_a_request_that_needs_the_whole_pool_gets_it_from_under_a_public_prefix() -> None:
    cache = public(PROMPT, num_pages=11)
    cache.set_terms({"a": Terms(guaranteed=1.0)})
    serve_as(cache, "a", [*PROMPT, *range(100, 132)])
    assert cache.available_to("b") == 0
    lease = cache.reserve(pack(range(900, 940)), b"b", 40, tenant="b")
    assert lease is not None
    assert found(cache, [*PROMPT, 1], b"a") == 0
    cache.check()


def test_a_public_prefix_is_not_promised_to_anyone_while_others_pages_lie_behind_it() -> None:
    cache = public(PROMPT, num_pages=11)
    cache.set_terms({"a": Terms(guaranteed=0.5)})
    serve_as(cache, "a", [*PROMPT, *range(100, 108)])
    with prefill(cache, [7], b"b", tenant="b"):
        assert cache.available_to("b") == 5
        assert cache.reserve(pack(range(900, 924)), b"b", 24, tenant="b") is None
        cache.check()


def test_a_public_prefix_that_nobody_asks_for_any_more_goes_like_anything_else() -> None:
    cache = public(PROMPT, num_pages=101)
    serve_as(cache, "a", [*PROMPT, 1])
    for number in range(40):
        serve_as(cache, "b", range(1000 * number, 1000 * number + 100))
    assert cache.accounts.public.used == 0
    cache.check()


def test_a_purge_takes_what_a_namespace_has_behind_public_prefixes_and_no_more() -> None:
    cache = public(PROMPT)
    serve_as(cache, "a", [*PROMPT, 1, 2, 3, 4])
    serve_as(cache, "a", [90, 91, 92, 93])
    serve_as(cache, "b", [*PROMPT, 1, 2, 3, 4])
    assert cache.purge(b"a").dropped == 2
    assert found(cache, [*PROMPT, 1, 2, 3, 4], b"a") == 8
    assert found(cache, [*PROMPT, 1, 2, 3, 4], b"b") == 12
    assert cache.reset(["b"]).dropped == 1
    assert found(cache, [*PROMPT, 1, 2, 3, 4], b"b") == 8
    assert cache.reset().dropped == 2
    assert cache.pool.free == 63
    cache.check()


def test_a_reset_under_load_lets_requests_behind_a_public_prefix_go_on() -> None:
    cache = public(PROMPT)
    lease = prefill(cache, [*PROMPT, 1, 2, 3, 4], b"a", tenant="a")
    assert cache.reset().held == 3
    cache.check()
    append(lease, *range(30, 40))
    assert found(cache, [*PROMPT, 1], b"b") == 0
    assert serve_as(cache, "b", [*PROMPT, 1]) == 0
    cache.check()
    lease.release()
    cache.check()
    assert found(cache, [*PROMPT, 1, 2, 3, 4], b"a") == 8
    assert cache.pool.free == 60


def test_spoilt_pages_of_a_public_prefix_leave_the_tree_too() -> None:
    cache = public(PROMPT)
    lease = prefill(cache, [*PROMPT, 1, 2, 3, 4], b"a", tenant="a")
    lease.release(keep=False)
    assert found(cache, [*PROMPT, 1], b"a") == 0
    assert cache.pool.free == 63
    other = prefill(cache, [*PROMPT, 5, 6, 7, 8], b"b", tenant="b")
    prefill(cache, [*PROMPT, 1, 2, 3, 4], b"a", tenant="a").release(keep=False)
    assert found(cache, [*PROMPT, 1, 2, 3, 4], b"a") == 8
    other.release()
    assert idle(cache)


def test_a_spoilt_request_that_holds_nothing_behind_a_public_prefix_takes_it_along() -> None:
    cache = public(PROMPT)
    lease = prefill(cache, [*PROMPT, 1], b"a", tenant="a")
    lease.release(keep=False)
    assert found(cache, [*PROMPT, 1], b"a") == 0
    assert idle(cache)


def test_a_public_page_that_a_step_in_flight_reads_is_not_evicted_after_a_purge() -> None:
    cache = public(PROMPT, num_pages=5)
    lease = prefill(cache, [*PROMPT, 1, 2, 3, 4], b"a", tenant="a")
    step = cache.begin_step()
    lease.release()
    cache.purge(b"a")
    cache.check()
    assert cache.evict(2) == 0
    cache.end_step(step)
    assert cache.evict(2) == 2


def test_a_public_page_that_a_step_in_flight_reads_is_not_evicted_after_a_reset() -> None:
    cache = public(PROMPT, num_pages=5)
    lease = prefill(cache, [*PROMPT, 1, 2, 3, 4], b"a", tenant="a")
    step = cache.begin_step()
    cache.reset(["a"])
    lease.release()
    assert cache.tree.evictable == 2
    assert cache.evict(2) == 0
    cache.end_step(step)
    assert cache.evict(2) == 2
    cache.check()


@pytest.mark.parametrize("whose", ["namespace", "tenant"])
def test_who_is_purged_while_in_the_public_part_publishes_nothing_behind_it(whose: str) -> None:
    cache = public(PROMPT)
    prompt = [*PROMPT, 20, 21, 22, 23]
    leases = [cache.reserve(pack(prompt), name.encode(), 12, tenant=name) for name in ("a", "b")]
    one, two = (lease for lease in leases if lease is not None)
    for lease in (one, two):
        compute(lease, 4)
    purge = cache.purge(b"a") if whose == "namespace" else cache.reset(["a"])
    assert (purge.dropped, purge.held) == (0, 0)
    for lease in (one, two):
        compute(lease, 8)
        cache.check()
        lease.release()
    assert found(cache, prompt, b"a") == 8
    assert found(cache, prompt, b"b") == 12
    assert serve_as(cache, "a", [*prompt, 1]) == 8
    assert found(cache, prompt, b"a") == 12
    assert idle(cache)
