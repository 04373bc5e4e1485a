from __future__ import annotations

import random
import time
from array import array

import pytest

from radixserve.cache.clock import StepClock
from radixserve.cache.eviction import EvictionOrder
from radixserve.cache.node import Node
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.quota import Accounts
from radixserve.cache.terms import DONE, term
from radixserve.tenant import OPEN
from radixserve.tokens import pack
from tests.cache.serving import found, idle, nodes, order, prefill, serve, tick


def _leaf(page: int, last_use: int, end: int) -> Node:
    leaf = Node(pack([page]), array("i", [page]), None, Accounts(9).of(OPEN), end=end)
    leaf.last_use = last_use
    return leaf


def test_the_order_is_by_age_then_depth_then_page() -> None:
    order = EvictionOrder()
    leaves = [
        _leaf(5, 1, 3),
        _leaf(6, 1, 3),
        _leaf(4, 1, 2),
        _leaf(3, 2, 90),
        _leaf(2, 3, 9),
        _leaf(1, 3, 1),
    ]
    shuffled = list(leaves)
    random.Random(1).shuffle(shuffled)
    for leaf in shuffled:
        order.add(leaf)
    assert order.leaves() == leaves
    order.remove(leaves[0])
    assert order.pop(0, StepClock()) is None, "it is in use still"
    assert [order.pop(3, StepClock()) for _ in range(6)] == [*leaves[1:], None]


def test_newcomers_go_after_what_is_old_and_before_what_is_young_or_kept() -> None:
    old, young, newcomer, kept, done = (_leaf(page, page, 4) for page in range(1, 6))
    newcomer.newcomer = 1
    kept.newcomer, kept.kept = 1, term(60, 0)
    done.kept = DONE
    order = EvictionOrder()
    for leaf in (young, newcomer, kept, done, old):
        order.add(leaf)
    assert order.sound()
    gone = [order.pop(9, StepClock(), 1) for _ in range(6)]
    assert gone == [done, old, newcomer, young, kept, None]
    for leaf in (young, newcomer):
        order.add(leaf)
    assert order.pop(9, StepClock()) is young, "without word of what is old, by age alone"
    order.add(young)
    assert order.pop(2, StepClock(), 1) is young, "what a step still reads does not go"
    assert order.pop(2, StepClock(), 1) is None
    assert order.sound()


def test_a_leaf_that_is_not_in_the_order_cannot_be_removed() -> None:
    order = EvictionOrder()
    with pytest.raises(ValueError, match="not in"):
        order.remove(_leaf(1, 1, 1))


def test_an_order_whose_leaf_has_aged_in_place_is_not_sound() -> None:
    order = EvictionOrder()
    leaf = _leaf(1, 1, 1)
    order.add(leaf)
    assert order.sound()
    leaf.last_use = 2
    assert not order.sound()


def test_the_coldest_goes_first() -> None:
    cache = PrefixCache(64, 2)
    for first in (1, 2, 3):
        serve(cache, [first] * 4)
        tick(cache)
    serve(cache, [1, 1, 1, 1, 9])
    cache.evict(2)
    assert [found(cache, [first] * 4) for first in (1, 2, 3)] == [4, 0, 4]
    cache.evict(2)
    assert [found(cache, [first] * 4) for first in (1, 2, 3)] == [4, 0, 0]


def test_among_equally_cold_ones_the_deepest_goes_first() -> None:
    cache = PrefixCache(64, 2)
    serve(cache, [1] * 4)
    serve(cache, [2] * 8)
    serve(cache, [3] * 6)
    cache.evict(1)
    assert [found(cache, [first] * 8) for first in (1, 2, 3)] == [4, 6, 6]


def test_eviction_trims_blocks_from_the_end() -> None:
    cache = PrefixCache(64, 2)
    serve(cache, range(20))
    for left in range(18, 0, -2):
        assert cache.evict(1) == 1
        assert found(cache, range(20)) == left
        assert nodes(cache) == [(left, list(range(left)))]
        cache.check()


def test_evicting_many_at_once_takes_exactly_what_is_wanted() -> None:
    cache = PrefixCache(64, 2)
    serve(cache, range(20))
    serve(cache, range(100, 120))
    assert cache.evict(13) == 13
    assert cache.tree.pages == 7
    assert cache.evicted == 13
    cache.check()


def test_evicting_more_than_is_cold_takes_what_is_cold() -> None:
    cache = PrefixCache(64, 2)
    lease = prefill(cache, range(8))
    serve(cache, range(100, 107))
    assert cache.evict(1000) == 4
    assert cache.evict(1) == 0
    assert cache.evict(0) == 0
    assert cache.evict(-3) == 0
    assert found(cache, range(8)) == 8
    lease.release()
    assert idle(cache)


def test_a_pinned_leaf_survives_when_all_is_evicted() -> None:
    cache = PrefixCache(64, 2)
    serve(cache, [1, 1, 2, 2])
    serve(cache, [1, 1, 3, 3])
    with cache.acquire(pack([1, 1, 2, 2, 9]), b"") as lease:
        cache.evict(1000)
        assert nodes(cache) == [(4, [1, 1, 2, 2])] or nodes(cache) == [(2, [1, 1]), (4, [2, 2])]
        assert found(cache, [1, 1, 2, 2]) == lease.reused == 4
        assert cache.tree.evictable == 0
        cache.check()


def test_a_parent_is_as_young_as_the_youngest_child_that_it_had() -> None:
    cache = PrefixCache(64, 1)
    serve(cache, [1, 2])
    serve(cache, [1, 3])
    tick(cache)
    cache.acquire(pack([1, 3, 9]), b"").release()
    old, young = order(cache).leaves()
    assert (old.last_use, young.last_use) == (0, 1)
    young.account.order.remove(young)
    cache.give_back(young.account, cache.tree.trim(young, 1))
    assert [leaf.last_use for leaf in order(cache).leaves()] == [1]
    assert nodes(cache) == [(2, [1, 2])]
    cache.check()


def test_the_open_leaf_goes_before_the_blocks_above_it() -> None:
    cache = PrefixCache(64, 4)
    serve(cache, range(6))
    cache.evict(1)
    assert nodes(cache) == [(4, [0, 1, 2, 3])]
    cache.check()


def test_a_release_makes_the_youngest_leaf() -> None:
    cache = PrefixCache(64, 2)
    old = prefill(cache, [1] * 4)
    tick(cache)
    serve(cache, [2] * 4)
    tick(cache)
    old.release()
    cache.evict(2)
    assert [found(cache, [first] * 4) for first in (1, 2)] == [4, 0]


def test_the_order_stays_right_through_thousands_of_random_uses() -> None:
    rng = random.Random(9)
    cache = PrefixCache(128, 2)
    for _ in range(3000):
        serve(cache, rng.choices(range(2), k=rng.randrange(1, 16)), rng.choice((b"", b"a")))
        if rng.random() < 0.3:
            tick(cache)
        if rng.random() < 0.2:
            cache.evict(rng.randrange(10))
        assert order(cache).sound()
    cache.check()


def test_evicting_one_page_rebuilds_no_order_of_all_leaves() -> None:
    """Over 10,000 leaves that would take several milliseconds a call."""
    cache = PrefixCache(20_100, 1)
    for first in range(10_000):
        serve(cache, [first, 1])
    begin = time.thread_time()
    for _ in range(1000):
        assert cache.evict(1) == 1
    assert time.thread_time() - begin < 1
