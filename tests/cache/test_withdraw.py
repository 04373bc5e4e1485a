"""Public prefixes that are withdrawn, in whatever order the tree has them."""

from __future__ import annotations

import pytest

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import pack
from tests.cache.oracle import run
from tests.cache.serving import append, found, idle, prefill, public, serve_as

SHORT = list(range(4))
LONG = list(range(8))


def test_a_prefix_and_its_own_beginning_are_withdrawn_at_once() -> None:
    cache = public(SHORT, LONG)
    # Something hangs below the short one, and nothing has gone on to the long one.
    serve_as(cache, "a", [*SHORT, 30, 31, 32, 33, 34])
    for left in ([], [SHORT], [LONG]):
        cache.set_public([pack(each) for each in left])
        cache.check()
    cache.set_public([])
    cache.check()
    assert cache.evict(63) == cache.evicted
    assert cache.pool.free == 63
    assert idle(cache)


def test_what_another_prefix_goes_on_with_stays_in_one_piece() -> None:
    cache = public(LONG, [*SHORT, 50, 51, 52, 53])
    serve_as(cache, "a", [*LONG, 30, 31])
    before = cache.tree.nodes
    cache.set_public([pack(LONG)])
    cache.check()
    assert cache.tree.nodes == before
    assert serve_as(cache, "b", [*LONG, 30, 31]) == 8


def test_a_request_that_reuses_part_of_a_prefix_ends_after_it_is_withdrawn() -> None:
    cache = public(LONG)
    serve_as(cache, "a", [*LONG, 30])
    inside = cache.acquire(pack([*LONG, 30]), b"a", limit=len(SHORT))
    whole = cache.acquire(pack([*LONG, 30]), b"b")
    cache.set_public([])
    inside.release()
    cache.check()
    whole.release()
    cache.check()
    assert cache.pool.free == 63


def test_what_is_public_no_more_is_found_by_nobody_and_running_requests_keep_it() -> None:
    cache = public(LONG)
    serve_as(cache, "b", [*LONG, 7])
    lease = prefill(cache, [*LONG, 1, 2, 3, 4], b"a", tenant="a")
    row = list(lease.pages)
    cache.set_public([])
    cache.check()
    assert found(cache, [*LONG, 1], b"b") == 0
    append(lease, *range(30, 40))
    assert list(lease.pages[:3]) == row
    assert serve_as(cache, "b", [*LONG, 7]) == 0
    assert found(cache, [*LONG, 7], b"a") == 0
    cache.check()
    lease.release()
    cache.check()
    assert (cache.tree.hung, cache.accounts.public.used) == ({}, 0)
    assert idle(cache)


def test_who_computes_a_prefix_that_is_withdrawn_meanwhile_leaves_none_of_the_rest() -> None:
    cache = public(LONG, [*LONG[:4], 90, 91, 92, 93])
    lease = cache.reserve(pack([*LONG, 1, 2, 3]), b"a", 11, tenant="a")
    assert lease is not None
    lease.publish(4)
    cache.set_public([pack([*LONG[:4], 90, 91, 92, 93])])
    lease.publish(10)
    lease.release()
    cache.check()
    assert found(cache, [*LONG, 1], b"a") == 0
    assert found(cache, [*LONG[:4], 90, 91, 92, 93, 1], b"b") == 4
    assert idle(cache)


def test_withdrawing_one_prefix_leaves_what_it_has_in_common_with_another() -> None:
    other = [*LONG[:4], 90, 91, 92, 93]
    cache = public(LONG, other)
    serve_as(cache, "a", [*LONG, 1])
    serve_as(cache, "a", [*other, 1])
    cache.set_public([pack(other)])
    cache.check()
    assert found(cache, [*other, 1], b"b") == 8
    assert found(cache, [*other, 1], b"a") == 9
    assert cache.accounts.public.used == 2
    assert idle(cache)


def test_a_prefix_may_be_public_again() -> None:
    cache = public(LONG)
    lease = prefill(cache, [*LONG, 1], b"a", tenant="a")
    for _ in range(3):
        cache.set_public([])
        cache.set_public([pack(LONG)])
        assert serve_as(cache, "b", [*LONG, 1]) == 0
        assert serve_as(cache, "b", [*LONG, 1]) == 8
        cache.check()
    lease.release()
    assert idle(cache)


def test_withdrawing_a_prefix_leaves_a_longer_one_whole() -> None:
    longer = [*LONG, 50, 51, 52, 53]
    cache = public(LONG, longer)
    serve_as(cache, "a", [*longer, 1])
    serve_as(cache, "a", [*LONG, 1])
    cache.set_public([pack(longer)])
    cache.check()
    assert found(cache, [*longer, 1], b"a") == 13
    assert found(cache, [*LONG, 1], b"a") == 0


def test_saying_the_same_prefixes_again_changes_nothing() -> None:
    cache = public(LONG)
    serve_as(cache, "a", [*LONG, 1])
    cache.set_public([pack(LONG), pack(LONG)])
    assert found(cache, [*LONG, 1], b"a") == 9


def test_what_was_private_before_a_prefix_became_public_stays_so() -> None:
    cache = PrefixCache(64, 4)
    lease = prefill(cache, [*LONG, 1], b"a", tenant="a")
    cache.set_public([pack(LONG)])
    append(lease, 2, 3, 4)
    lease.release()
    assert found(cache, [*LONG, 1], b"b") == 0
    assert serve_as(cache, "b", [*LONG, 1]) == 0
    assert found(cache, [*LONG, 1], b"a") == 8
    assert idle(cache)


@pytest.mark.parametrize("seed", [3, 4, 6])
def test_random_operations_that_once_left_the_tree_untidy(seed: int) -> None:
    assert sum(run(5000, seed=seed).values()) > 0
