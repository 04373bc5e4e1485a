from __future__ import annotations

import pytest

from radixserve.cache.errors import CacheError
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import pack
from tests.cache.serving import compute, found, idle, nodes, prefill, serve


def test_a_lease_walks_from_nothing_to_a_published_prompt_with_an_open_block() -> None:
    cache = PrefixCache(16, 4)
    lease = cache.acquire(pack(range(10)), b"")
    assert (lease.reused, lease.published, lease.computed, len(lease.pages)) == (0, 0, 0, 0)
    assert lease.extend(10)
    assert len(lease.pages) == 3
    lease.publish(10)
    assert (lease.published, lease.computed) == (8, 10)
    assert nodes(cache) == [(8, list(range(8)))]
    cache.check()


# Extending


def test_extend_takes_no_page_while_the_open_block_has_room() -> None:
    cache = PrefixCache(16, 4)
    lease = prefill(cache, range(5))
    pages = list(lease.pages)
    assert lease.extend(3)
    assert list(lease.pages) == pages
    assert lease.extend(4)
    assert len(lease.pages) == 3


def test_extending_twice_by_the_same_takes_pages_once() -> None:
    cache = PrefixCache(16, 4)
    lease = cache.acquire(pack(range(8)), b"")
    assert lease.extend(8)
    assert lease.extend(8)
    assert len(lease.pages) == 2


def test_a_refused_extension_changes_nothing() -> None:
    cache = PrefixCache(6, 4)
    serve(cache, range(8))
    lease = cache.acquire(pack(range(100, 200)), b"")
    assert not lease.extend(100)
    assert len(lease.pages) == 0
    assert cache.evicted == 0
    assert found(cache, range(8)) == 8
    assert lease.extend(20), "all five pages can be had"
    cache.check()


def test_an_extension_evicts_what_is_cold() -> None:
    cache = PrefixCache(6, 4)
    serve(cache, range(16))
    lease = cache.acquire(pack(range(100, 112)), b"")
    assert lease.extend(12)
    assert cache.evicted == 2
    assert found(cache, range(16)) == 8
    cache.check()


def test_a_hit_is_not_counted_as_room_for_what_follows_it() -> None:
    """5 pages, 2 cold ones are the hit, and 4 new ones are needed."""
    cache = PrefixCache(6, 4)
    serve(cache, range(8))
    before = nodes(cache)
    lease = cache.acquire(pack([*range(8), *range(50, 66)]), b"")
    assert lease.reused == 8
    assert not lease.extend(16)
    lease.release()
    assert nodes(cache) == before
    assert cache.evicted == 0
    assert found(cache, range(8)) == 8
    assert idle(cache)


# Publishing


@pytest.mark.parametrize("computed", [13, 12])
def test_what_has_no_page_cannot_be_published(computed: int) -> None:
    cache = PrefixCache(16, 4)
    lease = cache.acquire(pack(range(20)), b"")
    assert lease.extend(8)
    with pytest.raises(CacheError, match="room for 8"):
        lease.publish(computed)
    assert not cache.tree.pages


def test_tokens_that_are_not_known_cannot_be_published() -> None:
    cache = PrefixCache(16, 4)
    lease = cache.acquire(pack(range(6)), b"")
    assert lease.extend(8)
    with pytest.raises(CacheError, match="room for 6"):
        lease.publish(8)


def test_the_open_block_keeps_no_token_that_is_not_known() -> None:
    cache = PrefixCache(16, 4)
    lease = cache.acquire(pack(range(6)), b"")
    assert lease.extend(8)
    lease.publish(4)
    lease.publish(7)
    lease.release()
    cache.check()
    assert cache.peek(pack(range(9)), b"").tokens == 6


def test_less_than_was_computed_cannot_be_published() -> None:
    cache = PrefixCache(16, 4)
    lease = prefill(cache, range(6))
    with pytest.raises(CacheError, match="6 before"):
        lease.publish(5)


def test_nothing_is_found_before_it_was_published() -> None:
    """Pages that were only planned for are nobody's."""
    cache = PrefixCache(16, 4)
    lease = cache.acquire(pack(range(8)), b"")
    assert lease.extend(8)
    assert found(cache, range(8)) == 0
    lease.release()
    assert found(cache, range(8)) == 0
    assert idle(cache)
    assert cache.pool.free == 15


def test_a_step_that_fails_publishes_nothing() -> None:
    cache = PrefixCache(16, 4)
    lease = prefill(cache, range(5))
    assert lease.extend(7)
    step = cache.begin_step()
    lease.release()
    cache.end_step(step)
    assert found(cache, range(12)) == 5
    assert idle(cache)


def test_an_abort_at_any_moment_leaves_only_what_was_computed() -> None:
    """At every chunk of a prompt."""
    for chunks in range(6):
        cache = PrefixCache(16, 4)
        lease = cache.acquire(pack(range(20)), b"")
        for _ in range(chunks):
            compute(lease, 3)
        assert lease.extend(2)
        lease.release()
        assert found(cache, range(20)) == 3 * chunks
        assert idle(cache)


def test_publishing_before_the_copies_ran_raises() -> None:
    cache = PrefixCache(16, 4)
    serve(cache, range(4))
    lease = cache.acquire(pack([0, 1, 9, 9]), b"")
    assert lease.copies
    assert lease.extend(2)
    with pytest.raises(CacheError, match="before its copies"):
        lease.publish(4)


# Adopting


def test_the_second_of_two_equal_computations_adopts_the_pages_of_the_first() -> None:
    """Both orders of release."""
    for order in ((0, 1), (1, 0)):
        cache = PrefixCache(16, 4)
        leases = [cache.acquire(pack(range(10)), b"") for _ in range(2)]
        for lease in leases:
            assert lease.extend(10)
        own = list(leases[1].pages)
        for lease in leases:
            lease.publish(10)
        assert leases[1].pages[:2] == leases[0].pages[:2]
        assert leases[1].pages[2] == own[2] != leases[0].pages[2]
        assert all(cache.pool.holders(page) == 0 for page in own[:2])
        cache.check()
        for index in order:
            leases[index].release()
            cache.check()
        assert cache.tree.pages == 3
        assert idle(cache)


def test_adopting_in_the_middle_of_an_edge_splits_it() -> None:
    cache = PrefixCache(16, 2)
    late = cache.acquire(pack([0, 1, 2, 3, 8, 8, 8, 8]), b"")
    assert late.extend(8)
    first = prefill(cache, range(8))
    late.publish(8)
    assert nodes(cache) == [(4, [0, 1, 2, 3]), (8, [4, 5, 6, 7]), (8, [8, 8, 8, 8])]
    assert late.pages[:2] == first.pages[:2]
    assert late.published == 8
    cache.check()


def test_adopting_runs_on_over_several_nodes_and_then_appends() -> None:
    cache = PrefixCache(32, 1)
    late = cache.acquire(pack(range(10)), b"")
    assert late.extend(10)
    trunk = prefill(cache, range(3))
    serve(cache, [0, 1, 2, 9])
    other = prefill(cache, range(6))
    late.publish(10)
    assert late.pages[:6] == other.pages
    assert found(cache, range(10)) == 10
    cache.check()
    for lease in (trunk, late, other):
        lease.release()
    assert idle(cache)


def test_adopting_only_a_part_of_what_stands_there_follows_the_chunk() -> None:
    cache = PrefixCache(32, 2)
    late = cache.acquire(pack(range(12)), b"")
    assert late.extend(12)
    first = prefill(cache, range(12))
    late.publish(5)
    assert (late.published, late.anchor.end) == (4, 4)
    assert late.pages[:2] == first.pages[:2]
    cache.check()
    late.publish(12)
    assert late.anchor is first.anchor
    assert nodes(cache) == [(12, list(range(12)))]
    cache.check()


def test_a_page_that_is_exchanged_waits_until_the_steps_planned_with_it_have_ended() -> None:
    cache = PrefixCache(5, 4)
    late = cache.acquire(pack(range(8)), b"")
    assert late.extend(8)
    prefill(cache, range(8))
    own = set(late.pages)
    first, second = cache.begin_step(), cache.begin_step()
    late.publish(8)
    assert own.isdisjoint(late.pages)
    cache.check()
    other = cache.acquire(pack(range(50, 58)), b"")
    cache.end_step(first)
    assert cache.pool.quarantined == 2
    assert not other.extend(8), "a page was handed out that a step in flight may write"
    cache.end_step(second)
    assert other.extend(8)
    assert set(other.pages) == own


def test_a_page_let_go_in_flight_is_not_evicted_into_other_hands_before_the_step_ended() -> None:
    cache = PrefixCache(3, 4)
    lease = prefill(cache, range(8))
    pages = set(lease.pages)
    step = cache.begin_step()
    lease.release()
    other = cache.acquire(pack(range(50, 58)), b"")
    assert not other.extend(8), "a page was handed out that a step in flight may still read"
    cache.end_step(step)
    assert other.extend(8)
    assert set(other.pages) == pages
    cache.check()


def test_the_source_of_a_copy_in_flight_is_not_evicted_when_its_request_is_aborted() -> None:
    """The copy may still run."""
    cache = PrefixCache(3, 4)
    serve(cache, range(4))
    lease = cache.acquire(pack([0, 1, 9, 9]), b"")
    (copy,) = lease.copies
    step = cache.begin_step()
    lease.release()
    other = cache.acquire(pack(range(50, 58)), b"")
    assert not other.extend(4), f"page {copy.source} or {copy.target} is in use by step {step}"
    cache.end_step(step)
    assert other.extend(8)


def test_an_open_leaf_let_go_in_flight_is_not_replaced_into_other_hands() -> None:
    cache = PrefixCache(4, 4)
    first = prefill(cache, [0, 1])
    second = prefill(cache, [0, 1, 2])
    step = cache.begin_step()
    first.release()
    second.release()
    assert cache.pool.free == 1
    other = cache.acquire(pack(range(50, 58)), b"")
    assert not other.extend(8)
    cache.end_step(step)
    assert other.extend(8)
    cache.check()
