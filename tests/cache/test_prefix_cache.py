from __future__ import annotations

from itertools import pairwise

import pytest
import xxhash

from radixserve.cache.identity import block_ids
from radixserve.cache.pages import PageCopy
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import pack
from tests.cache.serving import compute, found, idle, nodes, only_node, order, prefill, serve

# Matching


def test_an_empty_cache_has_nothing() -> None:
    cache = PrefixCache(16, 4)
    assert found(cache, range(10)) == 0
    lease = cache.acquire(pack(range(10)), b"")
    assert (lease.reused, list(lease.pages), lease.copies) == (0, [], [])
    cache.check()


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 16, 17, 32])
def test_a_match_leaves_at_least_one_token_to_compute(page_size: int, length: int) -> None:
    cache = PrefixCache(64, page_size)
    serve(cache, range(length))
    with cache.acquire(pack(range(length)), b"") as lease:
        assert lease.reused == length - 1
        compute(lease, 1)
    assert idle(cache)


def test_the_empty_prompt_is_no_match_and_no_crash() -> None:
    cache = PrefixCache(16, 4)
    serve(cache, range(8))
    with cache.acquire(b"", b"") as lease:
        assert (lease.reused, len(lease.pages)) == (0, 0)
        assert lease.extend(0)
    assert idle(cache)


def test_lengths_around_the_page_size_are_inserted_and_matched() -> None:
    for length in range(1, 10):
        cache = PrefixCache(16, 4)
        serve(cache, range(length))
        assert found(cache, range(length)) == length
        whole = [node for node in nodes(cache) if len(node[1]) % 4 == 0]
        assert sum(len(key) for _, key in whole) == length - length % 4
        for asked in range(1, 12):
            with cache.acquire(pack(range(asked)), b"") as lease:
                assert lease.reused == min(length, asked - 1)
                assert lease.published % 4 == 0
        assert idle(cache)


@pytest.mark.parametrize("limit", [-1, 0, 1, 3, 4, 5, 8, 9, 100])
def test_a_match_goes_no_further_than_the_limit(limit: int) -> None:
    cache = PrefixCache(16, 4)
    serve(cache, range(10))
    expected = min(max(limit, 0), 9)
    assert cache.peek(pack(range(10)), b"", limit=limit).tokens == expected
    with cache.acquire(pack(range(10)), b"", limit=limit) as lease:
        assert lease.reused == expected
    assert idle(cache)


def test_3000_shared_tokens_are_all_reused_at_page_size_16() -> None:
    cache = PrefixCache(1000, 16)
    shared = list(range(3000))
    serve(cache, [*shared, *range(5000, 5100)])
    with cache.acquire(pack([*shared, *range(7000, 7100)]), b"") as lease:
        assert lease.reused == 3000
        assert (lease.published, lease.copies[0].tokens) == (2992, 8)
    assert idle(cache)


def test_two_prompts_that_share_less_than_a_block_share_it_by_a_copy() -> None:
    cache = PrefixCache(16, 16)
    serve(cache, range(16))
    with cache.acquire(pack([0, 1, 2, 99]), b"") as lease:
        assert lease.reused == 3
        assert lease.copies == [PageCopy(only_node(cache).pages[0], lease.pages[0], 3)]


def test_a_part_of_a_block_comes_from_the_neighbour_that_shares_most() -> None:
    cache = PrefixCache(32, 4)
    for tokens in ([5, 1, 1, 1], [5, 6, 1, 1], [5, 6, 7, 1], [5, 9, 9, 9]):
        serve(cache, tokens)
    assert found(cache, [5, 6, 7, 8]) == 3
    assert found(cache, [5, 6, 0, 0]) == 2
    assert found(cache, [5, 0, 0, 0]) == 1
    assert found(cache, [0]) == 0


def test_a_part_of_a_block_comes_from_the_rest_of_the_edge_that_the_match_ends_in() -> None:
    cache = PrefixCache(32, 4)
    serve(cache, range(12))
    with cache.acquire(pack([*range(6), 99]), b"") as lease:
        assert (lease.published, lease.reused) == (4, 6)
        assert nodes(cache) == [(4, [0, 1, 2, 3]), (12, [4, 5, 6, 7, 8, 9, 10, 11])]
    assert nodes(cache) == [(12, list(range(12)))]


def test_a_copy_goes_into_a_page_of_its_own() -> None:
    cache = PrefixCache(32, 4)
    first = prefill(cache, range(8))
    second = cache.acquire(pack([0, 1, 2, 3, 4, 9, 9, 9]), b"")
    assert second.pages[0] == first.pages[0]
    assert second.pages[1] != first.pages[1]
    compute(second, 3)
    assert found(cache, range(8)) == 8
    assert found(cache, [0, 1, 2, 3, 4, 9, 9, 9]) == 8
    cache.check()


def test_a_copy_is_done_without_when_there_is_no_page_for_it() -> None:
    cache = PrefixCache(3, 4)
    holder = prefill(cache, range(8))
    assert cache.peek(pack([0, 1, 2, 3, 4, 9]), b"").tokens == 5
    with cache.acquire(pack([0, 1, 2, 3, 4, 9]), b"") as lease:
        assert (lease.reused, lease.copies) == (4, [])
        cache.check()
    holder.release()
    assert idle(cache)


def test_a_copy_never_evicts_its_own_source() -> None:
    cache = PrefixCache(2, 4)
    serve(cache, range(4))
    with cache.acquire(pack([0, 1, 9]), b"") as lease:
        assert (lease.reused, lease.copies) == (0, [])
        assert found(cache, range(4)) == 4
    assert idle(cache)


def test_a_hit_is_pinned_at_once() -> None:
    cache = PrefixCache(16, 4)
    serve(cache, range(12))
    lease = cache.acquire(pack([*range(12), 99]), b"")
    assert cache.evict(100) == 0
    assert list(lease.pages) == list(only_node(cache).pages)


def test_a_page_that_was_evicted_and_used_again_is_not_found_by_its_old_tokens() -> None:
    cache = PrefixCache(5, 4)
    serve(cache, range(16))
    serve(cache, range(100, 116))
    assert found(cache, range(16)) == 0
    assert found(cache, range(100, 116)) == 16
    assert cache.tree.pages == 4
    cache.evict(4)
    assert (cache.tree.nodes, cache.tree.pages, cache.tree.roots) == (0, 0, {})
    assert found(cache, range(100, 116)) == 0
    cache.check()


def test_scattered_pages_stand_in_the_row_in_the_order_of_the_tokens() -> None:
    cache = PrefixCache(64, 1)
    lanes = [cache.acquire(bytearray(pack([lane] * 10)), b"") for lane in range(3)]
    for _ in range(10):
        for lane in lanes:
            compute(lane, 1)
    rows = [list(lane.pages) for lane in lanes]
    assert all(abs(a - b) > 1 for row in rows for a, b in pairwise(row))
    for lane in lanes:
        lane.release()
    for number, row in enumerate(rows):
        with cache.acquire(pack([number] * 11), b"") as again:
            assert list(again.pages) == row


# Peeking


def test_peek_says_what_acquire_finds_and_changes_nothing() -> None:
    cache = PrefixCache(32, 4)
    lease = prefill(cache, range(10))
    serve(cache, [0, 1, 2, 3, 50, 51, 52, 53])
    cache.begin_step()
    state = _state(cache)
    for tokens in ([*range(10), 7], [0, 1, 7], [0, 1, 2, 3, 50, 51, 7], [9], list(range(9))):
        peek = cache.peek(pack(tokens), b"")
        assert _state(cache) == state
        with cache.acquire(pack(tokens), b"") as found_lease:
            assert found_lease.published == peek.blocks
            assert found_lease.reused == peek.tokens == peek.blocks + peek.copied
        state = _state(cache)
    lease.release()


def test_peek_makes_no_root() -> None:
    cache = PrefixCache(32, 4)
    assert cache.peek(pack(range(9)), b"new").tokens == 0
    assert not cache.tree.roots


def _state(cache: PrefixCache) -> object:
    leaves = [(leaf.key, leaf.last_use, leaf.pins, leaf.hits) for leaf in order(cache).leaves()]
    return leaves, nodes(cache), cache.tree.nodes, cache.tree.evictable, cache.pool.free


def test_hits_are_counted_where_a_match_ends() -> None:
    cache = PrefixCache(32, 4)
    serve(cache, range(8))
    for _ in range(3):
        cache.acquire(pack([*range(8), 9]), b"").release()
    assert only_node(cache).hits == 3


# Namespaces


def test_namespaces_never_meet_not_even_for_a_part_of_a_block() -> None:
    cache = PrefixCache(64, 4)
    serve(cache, range(10), b"a")
    for other in (b"", b"b", b"a\0", b"aa", b"A"):
        assert found(cache, range(10), other) == 0
        assert serve(cache, range(10), other) == 0
    assert serve(cache, range(10), b"a") == 9, "one namespace shares with itself"
    with cache.acquire(pack([0, 1, 99]), b"a") as lease:
        assert lease.reused == 2
    assert idle(cache)


def test_equal_tokens_of_two_namespaces_lie_on_pages_of_their_own() -> None:
    cache = PrefixCache(64, 4)
    one, two = prefill(cache, range(10), b"a"), prefill(cache, range(10), b"b")
    assert set(one.pages).isdisjoint(two.pages)
    cache.check()


def test_a_namespace_leaves_nothing_behind_when_its_last_page_goes() -> None:
    cache = PrefixCache(8, 4)
    for number in range(100):
        serve(cache, range(8), number.to_bytes(2, "big"))
    cache.evict(100)
    assert (cache.tree.roots, cache.tree.nodes) == ({}, 0)
    for number in range(100):
        cache.acquire(pack([1]), number.to_bytes(2, "big")).release()
    assert (cache.tree.roots, cache.tree.nodes) == ({}, 0)


# Identity outside the process


def test_block_ids_are_a_chain_that_starts_at_the_namespace() -> None:
    tokens = pack(range(10))
    digest = xxhash.xxh3_128_digest(b"radixserve:" + b"a")
    expected = []
    for at in (0, 16):
        digest = xxhash.xxh3_128_digest(digest + tokens[at : at + 16])
        expected.append(digest.hex())
    assert block_ids(tokens, b"a", 4) == expected


def test_equal_blocks_differ_by_what_stands_before_them_and_by_namespace() -> None:
    ids = block_ids(pack([7] * 12), b"", 4)
    assert len(set(ids)) == 3
    assert block_ids(pack([7] * 8), b"", 4) == ids[:2]
    assert set(block_ids(pack([7] * 12), b"a", 4)).isdisjoint(ids)


def test_block_ids_are_given_for_what_is_cached_only() -> None:
    cache = PrefixCache(64, 4)
    serve(cache, range(10), b"a")
    tokens = pack(range(20))
    assert cache.block_ids(tokens, b"a") == block_ids(pack(range(8)), b"a", 4)
    assert cache.block_ids(tokens, b"a", limit=5) == block_ids(pack(range(4)), b"a", 4)
    assert cache.block_ids(tokens, b"b") == []
    assert cache.block_ids(bytearray(tokens), b"a") == cache.block_ids(tokens, b"a")


def test_available_counts_free_and_cold_pages_and_neither_pinned_nor_waiting_ones() -> None:
    cache = PrefixCache(9, 4)
    lease = prefill(cache, range(8))
    serve(cache, range(100, 108))
    assert (cache.pool.free, cache.tree.evictable, cache.available) == (4, 2, 6)
    step = cache.begin_step()
    assert lease.extend(4)
    lease.release()
    assert cache.pool.quarantined == 1
    assert cache.available == 7
    cache.end_step(step)
    assert cache.available == 8
