from __future__ import annotations

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import pack
from tests.cache.serving import append, compute, found, idle, prefill, serve


def test_a_purge_forgets_one_namespace_and_counts_what_it_dropped() -> None:
    cache = PrefixCache(64, 4)
    serve(cache, range(10), b"a")
    serve(cache, range(10), b"b")
    purge = cache.purge(b"a")
    assert (purge.dropped, purge.held) == (3, 0)
    assert found(cache, range(10), b"a") == 0
    assert found(cache, range(10), b"b") == 10
    assert idle(cache)
    assert cache.purge(b"a").dropped == 0


def test_a_purge_under_load_lets_running_requests_keep_what_they_hold() -> None:
    cache = PrefixCache(64, 4)
    lease = prefill(cache, range(10), b"a")
    serve(cache, [*range(8), 50, 51, 52, 53], b"a")
    row = list(lease.pages)
    purge = cache.purge(b"a")
    assert (purge.dropped, purge.held) == (1, 2)
    cache.check()
    assert list(lease.pages) == row
    assert cache.evict(100) == 0
    append(lease, *range(10, 30))
    assert list(lease.pages[:3]) == row
    cache.check()


def test_what_is_published_after_a_purge_stays_private() -> None:
    cache = PrefixCache(64, 4)
    lease = prefill(cache, range(6), b"a")
    cache.purge(b"a")
    assert lease.private
    append(lease, *range(6, 20))
    assert found(cache, range(20), b"a") == 0
    with lease.fork(bytearray(lease.tokens)) as twin:
        append(twin, 1, 2, 3)
        cache.check()
        assert found(cache, range(20), b"a") == 0
    lease.release()
    assert found(cache, range(20), b"a") == 0
    assert cache.pool.free == 63
    assert idle(cache)


def test_a_purged_namespace_can_be_filled_again_beside_its_old_requests() -> None:
    cache = PrefixCache(64, 4)
    old = prefill(cache, range(10))
    cache.purge(b"")
    assert serve(cache, range(10)) == 0
    assert serve(cache, range(10)) == 9
    append(old, 10, 11, 12)
    cache.check()
    old.release()
    assert found(cache, range(10)) == 10
    assert idle(cache)


def test_a_purge_between_a_match_and_its_copy_leaves_the_source_alone() -> None:
    cache = PrefixCache(64, 4)
    serve(cache, range(10))
    lease = cache.acquire(pack([*range(9), 99]), b"")
    (copy,) = lease.copies
    cache.purge(b"")
    cache.check()
    assert cache.pool.holders(copy.source) == 1
    compute(lease, 1)
    cache.check()
    assert cache.pool.holders(copy.source) == 0
    lease.release()
    assert cache.pool.free == 63
    cache.check()


def test_the_leases_of_a_purged_tree_may_end_in_any_order() -> None:
    for first in range(4):
        cache = PrefixCache(64, 2)
        leases = [prefill(cache, tokens) for tokens in ([1, 1], [1, 1, 2, 2], [1, 1, 3, 3])]
        leases.append(leases[1].fork(bytearray(leases[1].tokens)))
        cache.purge(b"")
        for index in range(4):
            leases[(first + index) % 4].release()
            cache.check()
        assert cache.pool.free == 63
        assert cache.tree.nodes == 0


def test_a_reset_forgets_every_namespace() -> None:
    cache = PrefixCache(64, 4)
    serve(cache, range(10), b"a")
    lease = prefill(cache, range(10), b"b")
    purge = cache.reset()
    assert (purge.dropped, purge.held) == (3, 2)
    assert not cache.tree.roots
    cache.check()
    lease.release()
    assert cache.pool.free == 63
    assert idle(cache)


def test_pages_of_a_purge_in_flight_wait_for_the_step_to_end() -> None:
    cache = PrefixCache(3, 4)
    lease = prefill(cache, range(8))
    step = cache.begin_step()
    lease.release()
    cache.purge(b"")
    assert cache.pool.free == 0, "a step in flight may still read them"
    cache.end_step(step)
    assert cache.pool.free == 2
    cache.check()
