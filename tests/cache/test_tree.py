from __future__ import annotations

import random
import time
from array import array

import pytest

from radixserve.cache.errors import CacheError
from radixserve.cache.node import Node, common_head, walk
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.quota import Accounts
from radixserve.cache.tree import RadixTree
from radixserve.tenant import OPEN
from radixserve.tokens import pack, unpack
from tests.cache.serving import (
    append,
    compute,
    found,
    idle,
    nodes,
    only_node,
    order,
    prefill,
    serve,
)


def test_the_common_head_is_the_longest_one() -> None:
    rng = random.Random(3)
    for _ in range(500):
        key = bytes(rng.choices(range(2), k=rng.randrange(12)))
        tokens = bytes(rng.choices(range(2), k=rng.randrange(20)))
        at = rng.randrange(len(tokens) + 1)
        stop = rng.randrange(at, len(tokens) + 1)
        window = tokens[at:stop]
        expected = next(
            (i for i, (a, b) in enumerate(zip(key, window, strict=False)) if a != b),
            min(len(key), len(window)),
        )
        assert common_head(key, tokens, at, stop) == expected


def test_byte_order_is_token_order_for_the_neighbour_with_the_longest_common_head() -> None:
    cache = PrefixCache(64, 4)
    for token in (1, 255, 256, 65_536, 2**31 - 1):
        serve(cache, [7, 7, token, token])
    assert found(cache, [7, 7, 256, 9]) == 3


def test_a_split_keeps_the_old_object_at_its_end_with_its_anchors_and_its_place() -> None:
    cache = PrefixCache(32, 2)
    lease = prefill(cache, range(8))
    old = lease.anchor
    other = cache.acquire(pack([0, 1, 2, 3, 99]), b"")
    assert lease.anchor is old
    assert (old.end, unpack(old.key)) == (8, [4, 5, 6, 7])
    assert other.anchor is old.parent
    assert (other.anchor.end, unpack(other.anchor.key)) == (4, [0, 1, 2, 3])
    assert list(lease.pages[:2]) == list(other.anchor.pages)
    cache.check()


def test_a_split_of_a_cold_leaf_keeps_its_place_in_the_eviction_order() -> None:
    cache = PrefixCache(32, 2)
    serve(cache, [1, 1, 1, 1])
    cache.end_step(cache.begin_step())
    serve(cache, [2, 2, 2, 2])
    first, second = order(cache).leaves()
    cache.tree.split(first, cache.tree.block)
    assert order(cache).leaves() == [first, second]
    assert order(cache).sound()


@pytest.mark.parametrize("at", [0, 4, 8 * 4, -8])
def test_a_split_elsewhere_than_between_two_blocks_raises(at: int) -> None:
    cache = PrefixCache(32, 2)
    serve(cache, range(8))
    with pytest.raises(CacheError, match="cannot split"):
        cache.tree.split(only_node(cache), at)
    cache.check()


def test_the_upper_part_of_a_pinned_edge_is_pinned_once_and_of_a_cold_one_not() -> None:
    cache = PrefixCache(32, 2)
    lease = prefill(cache, range(8))
    twin = lease.fork(bytearray(pack(range(8))))
    assert lease.anchor.pins == 2
    upper = cache.tree.split(lease.anchor, 8)
    assert upper.pins == 1
    lease.release()
    assert upper.pins == 1
    twin.release()
    assert upper.pins == 0
    assert cache.tree.split(only_node(cache), 8).pins == 0


def test_a_partial_match_pins_only_what_it_matched() -> None:
    cache = PrefixCache(102, 1)
    serve(cache, range(100))
    with cache.acquire(pack([*range(37), -1]), b""):
        assert cache.tree.evictable == 63
        assert cache.evict(1000) == 63
        assert found(cache, range(100)) == 37
        cache.check()
    assert idle(cache)


def test_pinning_stops_at_the_first_node_that_was_pinned_already() -> None:
    cache = PrefixCache(64, 1)
    trunk = prefill(cache, [1, 2])
    left = prefill(cache, [1, 2, 3])
    right = prefill(cache, [1, 2, 4])
    assert trunk.anchor.pins == 3
    again = cache.acquire(pack([1, 2, 3, 9]), b"")
    assert again.anchor is left.anchor
    assert left.anchor.pins == 2
    assert trunk.anchor.pins == 3, "the walk went on beyond a pinned node"
    again.release()
    right.release()
    assert trunk.anchor.pins == 2
    cache.check()


def test_unpinning_what_is_not_pinned_raises_and_changes_nothing() -> None:
    cache = PrefixCache(8, 1)
    serve(cache, [1, 2, 3])
    before = (cache.tree.evictable, cache.tree.nodes, only_node(cache).pins, order(cache).leaves())
    with pytest.raises(CacheError, match="not pinned"):
        cache.tree.unpin(only_node(cache), now=9)
    after = (cache.tree.evictable, cache.tree.nodes, only_node(cache).pins, order(cache).leaves())
    assert after == before
    cache.check()


def test_decoding_grows_one_node_in_place() -> None:
    cache = PrefixCache(64, 2)
    lease = prefill(cache, range(4))
    node = lease.anchor
    for token in range(4, 40):
        append(lease, token)
    assert lease.anchor is node
    assert nodes(cache) == [(40, list(range(40)))]


def test_a_node_that_another_lease_is_anchored_at_gets_a_child_instead() -> None:
    cache = PrefixCache(64, 2)
    lease = prefill(cache, range(4))
    twin = lease.fork(bytearray(lease.tokens))
    append(lease, 4, 5)
    assert nodes(cache) == [(4, [0, 1, 2, 3]), (6, [4, 5])]
    assert twin.anchor is lease.anchor.parent
    cache.check()


def test_a_node_with_a_child_gets_another_child() -> None:
    cache = PrefixCache(64, 2)
    lease = prefill(cache, range(4))
    serve(cache, [0, 1, 2, 3, 8, 8])
    append(lease, 4, 5)
    assert nodes(cache) == [(4, [0, 1, 2, 3]), (6, [4, 5]), (6, [8, 8])]


def test_chains_of_single_children_become_one_node_when_the_seam_is_let_go() -> None:
    cache = PrefixCache(64, 2)
    lease = prefill(cache, range(2))
    seams = []
    for token in range(2, 20, 2):
        seams.append(lease.fork(bytearray(lease.tokens)))
        append(lease, token, token + 1)
    assert len(nodes(cache)) == 10
    random.Random(1).shuffle(seams)
    for seam in seams:
        seam.release()
        cache.check()
    assert nodes(cache) == [(20, list(range(20)))]
    assert lease.anchor.pins == 1


def test_two_branches_become_one_node_when_one_is_evicted() -> None:
    cache = PrefixCache(64, 2)
    serve(cache, [1, 1, 2, 2])
    cache.end_step(cache.begin_step())
    serve(cache, [1, 1, 3, 3])
    assert len(nodes(cache)) == 3
    cache.evict(1)
    assert nodes(cache) == [(4, [1, 1, 3, 3])]
    cache.check()


def test_a_split_and_the_match_that_made_it_leave_no_trace() -> None:
    cache = PrefixCache(64, 2)
    serve(cache, range(20))
    for length in range(1, 21):
        cache.acquire(pack(range(length)), b"").release()
        cache.check()
    assert nodes(cache) == [(20, list(range(20)))]


def test_an_open_leaf_is_never_a_step_on_a_path() -> None:
    cache = PrefixCache(16, 4)
    serve(cache, [1, 2, 3])
    leaf = only_node(cache)
    assert cache.tree.is_open(leaf)
    with cache.acquire(pack([1, 2, 3, 4, 5]), b"") as lease:
        assert lease.published == 0
        assert (lease.reused, lease.copies[0].source) == (3, leaf.pages[0])


def test_lookups_follow_the_right_child_among_thousands() -> None:
    cache = PrefixCache(3000, 1)
    rng = random.Random(5)
    firsts = rng.sample(range(1, 2**31 - 1), 1000)
    for first in firsts:
        serve(cache, [first, first ^ 1])
    assert all(found(cache, [first, first ^ 1]) == 2 for first in firsts)
    assert found(cache, [0, 0]) == 0
    cache.check()


def _deep(cache: PrefixCache, depth: int) -> None:
    """A trunk with a seam at every token, each kept open by a side branch."""
    trunk = prefill(cache, [0])
    for level in range(1, depth):
        with trunk.fork(bytearray(trunk.tokens)) as branch:
            append(branch, 10_000_000 + level)
        append(trunk, level)
    trunk.release()


def test_a_tree_of_20_000_levels_is_matched_checked_purged_and_evicted_without_recursion() -> None:
    depth = 20_000
    cache = PrefixCache(2 * depth + 10, 1)
    _deep(cache, depth)
    assert cache.tree.nodes > depth
    assert found(cache, range(depth)) == depth
    with cache.acquire(pack([*range(depth), -1]), b"") as lease:
        assert lease.reused == depth
        cache.check()
    assert cache.evict(depth) == depth
    cache.check()
    assert len(list(walk(cache.tree.roots[b""]))) == cache.tree.nodes
    cache.purge(b"")
    cache.check()
    assert cache.pool.free == cache.pool.num_pages - 1


def test_twenty_thousand_nested_prefixes_are_served_one_after_the_other() -> None:
    cache = PrefixCache(20_100, 1)
    lease = prefill(cache, [0])
    for token in range(1, 20_000):
        append(lease, token)
    lease.release()
    assert found(cache, range(20_000)) == 20_000
    assert len(nodes(cache)) == 1
    assert cache.evict(20_000) == 20_000


def test_matching_a_million_tokens_over_2_000_nodes_takes_no_copy_of_the_rest() -> None:
    """A copy of the rest at each node would move 4 GB and take seconds."""
    cache = PrefixCache(70_000, 16)
    packed = pack(range(1_000_000))
    trunk = cache.acquire(packed, b"")
    assert trunk.extend(1_000_000)
    for end in range(496, 1_000_000, 496):
        trunk.publish(end)
        with trunk.fork(packed[: end * 4] + pack([-2] * 16)) as branch:
            compute(branch, 16)
    trunk.release()
    assert cache.tree.nodes > 4_000
    begin = time.thread_time()
    assert cache.peek(packed, b"").tokens == 999_936
    assert time.thread_time() - begin < 0.5


def test_a_root_cannot_be_removed_like_a_leaf() -> None:
    accounts = Accounts(9)
    tree = RadixTree(1, accounts)
    root = tree.root(b"", accounts.of(OPEN))
    with pytest.raises(CacheError, match="root"):
        tree.trim(root, 1)


def test_a_node_out_of_place_is_noticed_when_it_is_unlinked() -> None:
    accounts = Accounts(9)
    tree = RadixTree(1, accounts)
    root = tree.root(b"", accounts.of(OPEN))
    tree.pin(root)
    leaf = tree.add(root, pack([1]), array("i", [1]), now=0)
    stranger = Node(pack([1]), array("i", [2]), root, root.account, end=1)
    with pytest.raises(CacheError, match="where its key says"):
        tree.trim(stranger, 1)
    assert root.children == [leaf]
