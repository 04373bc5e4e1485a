from __future__ import annotations

import pytest

from radixserve.cache.errors import CacheError
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import pack
from tests.cache.serving import append, compute, found, idle, nodes, order, prefill, serve


def test_release_is_idempotent() -> None:
    cache = PrefixCache(16, 4)
    lease = prefill(cache, range(10))
    twin = lease.fork(bytearray(lease.tokens))
    lease.release()
    free, evictable = cache.pool.free, cache.tree.evictable
    lease.release()
    assert (cache.pool.free, cache.tree.evictable) == (free, evictable)
    cache.check()
    twin.release()
    assert idle(cache)


def test_a_released_lease_can_do_nothing_any_more() -> None:
    cache = PrefixCache(16, 4)
    lease = prefill(cache, range(10))
    lease.release()
    with pytest.raises(CacheError, match="released"):
        lease.extend(1)
    with pytest.raises(CacheError, match="released"):
        lease.publish(10)
    with pytest.raises(CacheError, match="released"):
        lease.fork(b"")


def test_an_error_in_the_middle_gives_everything_back() -> None:
    """A thousand times."""
    cache = PrefixCache(16, 4)
    serve(cache, range(10))
    for _ in range(1000):
        with pytest.raises(RuntimeError):
            _fail_in_the_middle(cache)
    assert idle(cache)
    assert found(cache, range(10)) == 10


def _fail_in_the_middle(cache: PrefixCache) -> None:
    with cache.acquire(pack(range(30)), b"") as lease:
        assert lease.reused == 10
        assert lease.extend(4)
        raise RuntimeError


def test_an_abort_before_the_copies_ran_keeps_nothing_of_the_open_block() -> None:
    cache = PrefixCache(16, 4)
    serve(cache, range(4))
    lease = cache.acquire(pack([0, 1, 9, 9]), b"")
    (copy,) = lease.copies
    assert lease.anchor.children is not None
    lease.release()
    assert cache.tree.pages == 1
    assert cache.pool.holders(copy.target) == 0
    assert cache.pool.holders(copy.source) == 1
    assert idle(cache)


def test_the_open_block_stays_to_be_copied_from() -> None:
    cache = PrefixCache(16, 4)
    serve(cache, range(6))
    assert nodes(cache) == [(4, [0, 1, 2, 3]), (6, [4, 5])]
    with cache.acquire(pack([*range(6), 7]), b"") as lease:
        assert (lease.reused, lease.published) == (6, 4)
        assert lease.copies[0].tokens == 2
    assert idle(cache)


def test_an_open_block_that_is_covered_already_is_not_kept_again() -> None:
    cache = PrefixCache(16, 4)
    serve(cache, range(8))
    serve(cache, range(6))
    serve(cache, range(7))
    assert nodes(cache) == [(8, list(range(8)))]
    assert idle(cache)


@pytest.mark.parametrize("length", [7, 8, 11])
def test_a_longer_block_replaces_the_open_leaf_that_it_begins_with(length: int) -> None:
    cache = PrefixCache(16, 4)
    serve(cache, range(6))
    serve(cache, range(length))
    assert found(cache, range(length)) == length
    assert cache.tree.pages == -(-length // 4)
    assert idle(cache)


def test_open_blocks_that_differ_live_side_by_side() -> None:
    cache = PrefixCache(16, 4)
    for tokens in ([1, 2], [1, 3], [1, 2, 9], [2]):
        serve(cache, tokens)
    assert nodes(cache) == [(1, [2]), (2, [1, 3]), (3, [1, 2, 9])]
    assert idle(cache)


def test_an_open_leaf_that_is_being_copied_is_not_replaced() -> None:
    cache = PrefixCache(16, 4)
    serve(cache, [1, 2])
    reader = cache.acquire(pack([1, 2, 7]), b"")
    (copy,) = reader.copies
    serve(cache, [1, 2, 3, 4])
    assert cache.pool.holders(copy.source) == 1
    cache.check()
    reader.release()
    assert idle(cache)


def test_the_source_of_a_copy_is_pinned_until_the_copy_has_run() -> None:
    cache = PrefixCache(4, 4)
    serve(cache, range(4))
    lease = cache.acquire(pack([0, 1, 9, 9]), b"")
    (copy,) = lease.copies
    assert cache.evict(10) == 0
    assert cache.pool.holders(copy.source) == 1
    lease.copied()
    assert not lease.copies
    assert cache.evict(10) == 1
    cache.check()


def test_a_copy_is_forgone_when_its_source_takes_the_page_that_is_missing() -> None:
    cache = PrefixCache(3, 4)
    serve(cache, range(4))
    tokens = pack([0, 1, 9, 9, 9, 9, 9, 9])
    lease = cache.reserve(tokens, b"", 8)
    assert lease is not None
    assert (lease.reused, lease.computed, lease.copies) == (0, 0, [])
    lease.publish(8)
    cache.check()


def test_a_reservation_that_cannot_be_met_changes_nothing() -> None:
    cache = PrefixCache(6, 4)
    serve(cache, range(8))
    serve(cache, range(50, 58))
    running = cache.acquire(pack(range(100, 110)), b"")
    assert running.extend(4)
    ages = [(leaf.last_use, leaf.hits) for leaf in order(cache).leaves()]
    evicted = cache.evicted
    assert cache.reserve(pack([*range(8), *range(200, 216)]), b"", 24) is None
    assert cache.evicted == evicted
    assert [(leaf.last_use, leaf.hits) for leaf in order(cache).leaves()] == ages
    assert cache.peek(pack(range(9)), b"").tokens == 8
    cache.check()


def test_preemption_is_release_and_what_survives_is_found_again() -> None:
    cache = PrefixCache(16, 4)
    tokens = bytearray(pack(range(10)))
    victim = cache.acquire(tokens, b"")
    compute(victim, 10)
    append(victim, 50, 51)
    victim.release()
    with cache.acquire(tokens, b"") as again:
        assert again.reused == 11
    assert idle(cache)


def test_without_a_cache_leases_only_hand_out_pages() -> None:
    cache = PrefixCache(16, 4, enabled=False)
    lease = prefill(cache, range(10))
    assert lease.private
    twin = lease.fork(bytearray(lease.tokens))
    append(twin, 1)
    cache.check()
    lease.release()
    twin.release()
    assert cache.pool.free == 15
    assert serve(cache, range(10)) == 0
    assert found(cache, range(10)) == 0
    assert not cache.tree.roots
