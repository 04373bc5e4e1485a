"""What is kept for a time goes last, to the very block that was marked."""

from __future__ import annotations

from radixserve.cache.keeping import node_at
from radixserve.cache.node import Root, walk
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.terms import Keeping, Kept, Mark
from radixserve.tenant import OPEN
from radixserve.tokens import pack
from tests.cache.serving import (
    cache_of,
    compute,
    evict_one_by_one,
    found,
    held,
    idle,
    keep,
    nodes,
    prefill,
    serve,
    tick,
)


def test_what_is_kept_goes_last_however_old_it_is() -> None:
    cache = cache_of(16)
    assert keep(cache, range(8), (8, 60)) == Kept("granted", 8)
    tick(cache)
    serve(cache, range(100, 108))
    assert evict_one_by_one(cache, range(8), range(100, 108)) == [1, 1, 0, 0]


def test_of_what_is_kept_the_shortest_time_goes_first() -> None:
    cache = cache_of(16)
    keep(cache, range(8), (8, 60))
    keep(cache, range(100, 108), (8, 30))
    keep(cache, range(200, 208), (8, 45))
    prompts = range(8), range(100, 108), range(200, 208)
    assert evict_one_by_one(cache, *prompts) == [1, 1, 2, 2, 0, 0]


def test_the_block_that_holds_the_mark_is_kept_and_the_next_one_is_not() -> None:
    for mark, blocks in ((1, 1), (4, 1), (5, 2), (8, 2), (9, 3)):
        cache = cache_of(16)
        assert keep(cache, range(16), (mark, 60)) == Kept("granted", mark)
        assert held(cache) == blocks
        tick(cache)
        serve(cache, range(100, 104))
        cache.evict(5 - blocks)
        assert found(cache, range(16)) == blocks * 4
        assert found(cache, range(100, 104)) == 0


def test_a_mark_in_the_open_block_keeps_it_and_one_before_it_does_not() -> None:
    for mark, blocks in ((4, 1), (5, 2), (6, 2)):
        cache = cache_of(16)
        assert keep(cache, range(6), (mark, 60)) == Kept("granted", mark)
        assert held(cache) == blocks
        tick(cache)
        serve(cache, range(100, 104))
        cache.evict(3 - blocks)
        assert found(cache, range(6)) == (6 if blocks == 2 else 4)


def test_an_open_block_that_another_has_continued_stays_kept() -> None:
    cache = cache_of(16)
    keep(cache, range(6), (6, 60))
    serve(cache, range(12))
    assert held(cache) == 2
    tick(cache)
    assert nodes(cache) == [(8, [*range(8)]), (12, [*range(8, 12)])]
    cache.check()
    assert cache.evict(1) == 1
    assert found(cache, range(12)) == 8


def test_an_open_block_that_became_longer_stays_kept() -> None:
    cache = cache_of(16)
    keep(cache, range(5), (5, 60))
    serve(cache, range(7))
    cache.check()
    assert held(cache) == 2
    assert found(cache, range(7)) == 7


def test_the_open_block_of_one_that_was_continued_meanwhile_is_kept_too() -> None:
    cache = cache_of(16)
    lease = prefill(cache, range(6))
    serve(cache, range(16))
    assert cache.finish(lease, Keeping((Mark(6, 60),))) == Kept("granted", 6)
    cache.check()
    assert held(cache) == 2
    tick(cache)
    assert cache.evict(2) == 2
    assert found(cache, range(16)) == 8


def test_what_is_kept_for_too_long_goes_by_age_and_nobody_had_to_watch() -> None:
    cache = cache_of(16)
    keep(cache, range(8), (8, 60))
    tick(cache)
    serve(cache, range(100, 108))
    cache.time = 59
    assert held(cache) == 2
    cache.time = 60
    assert held(cache) == 0
    assert evict_one_by_one(cache, range(8), range(100, 108)) == [0, 0, 1, 1]


def test_a_hit_begins_the_time_anew() -> None:
    cache = cache_of(16)
    keep(cache, range(8), (8, 60))
    cache.time = 50
    serve(cache, [*range(8), 50])
    cache.check()
    cache.time = 109
    assert held(cache) == 2
    cache.time = 110
    assert held(cache) == 0


def test_a_hit_of_the_open_block_begins_its_time_anew() -> None:
    cache = cache_of(16)
    keep(cache, range(6), (6, 60))
    cache.time = 50
    serve(cache, [*range(6), 99])
    cache.check()
    cache.time = 100
    assert held(cache) == 2


def test_a_hit_when_it_is_over_begins_nothing() -> None:
    cache = cache_of(16)
    keep(cache, range(8), (8, 60))
    cache.time = 60
    serve(cache, [*range(8), 50])
    cache.check()
    assert held(cache) == 0


def test_a_hit_of_the_front_alone_does_not_keep_the_rest_for_longer() -> None:
    cache = cache_of(16)
    keep(cache, range(16), (16, 60))
    cache.time = 50
    serve(cache, [*range(8), 50])
    cache.check()
    cache.time = 60
    assert held(cache) == 2


def test_each_mark_has_its_own_time() -> None:
    cache = cache_of(16)
    assert keep(cache, range(16), (4, 3600), (12, 300)) == Kept("granted", 12)
    assert held(cache) == 3
    cache.time = 300
    assert held(cache) == 1
    cache.time = 3600
    assert held(cache) == 0


def test_a_longer_time_further_on_holds_for_what_is_before_it() -> None:
    cache = cache_of(16)
    assert keep(cache, range(16), (4, 300), (12, 3600)) == Kept("granted", 12)
    cache.time = 300
    assert held(cache) == 3
    assert nodes(cache) == [(12, [*range(12)]), (16, [*range(12, 16)])]


def test_a_mark_on_all_keeps_the_answer_too() -> None:
    cache = cache_of(16)
    assert keep(cache, range(10), (None, 60)) == Kept("granted", 10)
    assert held(cache) == 3


def test_a_conversation_that_goes_on_leaves_one_seam() -> None:
    cache = cache_of(64)
    for turn in range(1, 10):
        assert keep(cache, range(8 * turn), (8 * turn - 4, 60)) == Kept("granted", 8 * turn - 4)
    assert nodes(cache) == [(68, [*range(68)]), (72, [*range(68, 72)])]


def test_what_is_computed_behind_a_kept_prefix_is_not_kept() -> None:
    cache = cache_of(32)
    keep(cache, range(8), (8, 60))
    lease = prefill(cache, [*range(8), *range(50, 54)])
    for token in range(20):
        assert isinstance(lease.tokens, bytearray)
        lease.tokens.extend(pack([token]))
        compute(lease, 1)
    cache.check()
    lease.release()
    assert held(cache) == 2
    assert len(nodes(cache)) == 2


def test_a_pool_that_is_all_kept_still_serves() -> None:
    cache = cache_of(8)
    for first in (0, 100):
        assert keep(cache, range(first, first + 16), (16, 86_400)) == Kept("granted", 16)
    assert held(cache) == 8
    assert serve(cache, range(200, 232)) == 0
    assert found(cache, range(200, 232)) == 32
    assert held(cache) == 0
    assert idle(cache)


def test_a_purge_forgets_what_was_kept() -> None:
    cache = cache_of(16)
    keep(cache, range(8), (8, 60), session="s")
    cache.purge(b"")
    cache.check()
    assert held(cache) == 0
    assert cache.end_session(OPEN, b"", "s") is None


def test_what_is_purged_while_it_runs_is_not_kept() -> None:
    cache = cache_of(16)
    lease = prefill(cache, range(8))
    cache.purge(b"")
    assert cache.finish(lease, Keeping((Mark(8, 60),), "s")) == Kept("refused", 0)
    assert held(cache) == 0
    assert cache.end_session(OPEN, b"", "s") is None
    assert idle(cache)


def test_what_was_not_computed_is_not_kept() -> None:
    cache = cache_of(16)
    lease = cache.acquire(bytearray(pack(range(16))), b"")
    compute(lease, 8)
    assert cache.finish(lease, Keeping((Mark(12, 60),))) == Kept("partial", 8)
    lease = cache.acquire(bytearray(pack(range(100, 116))), b"")
    assert cache.finish(lease, Keeping((Mark(12, 60),))) == Kept("refused", 0)
    cache.check()


def test_without_a_cache_nothing_is_kept() -> None:
    cache = PrefixCache(17, 4, enabled=False, keep=1.0)
    assert keep(cache, range(8), (8, 60)) == Kept("refused", 0)


def test_who_marks_nothing_is_told_nothing() -> None:
    assert keep(cache_of(16), range(8)) is None


def test_a_kept_leaf_that_a_step_in_flight_reads_is_not_evicted() -> None:
    cache = cache_of(8)
    keep(cache, range(8), (8, 30))
    step = cache.begin_step()
    keep(cache, range(100, 108), (8, 20))
    assert cache.evict(cache.pool.num_pages) == 2
    assert found(cache, range(100, 108)) == 8
    cache.end_step(step)
    assert cache.evict(cache.pool.num_pages) == 2


def test_a_place_on_a_path_is_found_and_a_seam_is_made_there() -> None:
    cache = cache_of(16)
    with prefill(cache, range(16)) as lease:
        assert node_at(cache.tree, lease.anchor, 16) is lease.anchor
        assert node_at(cache.tree, lease.anchor, 8).end == 8
        assert [node.end for node in walk(cache.tree.roots[b""])] == [0, 8, 16]
        cache.tree.join(node_at(cache.tree, lease.anchor, 8))
        assert isinstance(lease.anchor.parent, Root)


def test_a_last_page_that_a_fork_has_too_is_not_kept() -> None:
    cache = cache_of(16)
    lease = prefill(cache, range(6))
    with lease.fork(bytearray(lease.tokens)):
        assert cache.finish(lease, Keeping((Mark(6, 60),))) == Kept("partial", 4)
    assert cache.accounts.keeps.refused == {"shared": 1}
    assert idle(cache)
