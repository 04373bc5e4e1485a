"""Public prefixes that are withdrawn together, in whatever order the tree has them."""

from __future__ import annotations

import pytest

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import pack
from tests.cache.oracle import run
from tests.cache.serving import idle, serve_as

SHORT = list(range(4))
LONG = list(range(8))


def public(*prefixes: list[int]) -> PrefixCache:
    cache = PrefixCache(64, 4)
    cache.set_public([pack(each) for each in prefixes])
    return cache


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


@pytest.mark.parametrize("seed", [3, 4, 6])
def test_random_operations_that_once_left_the_tree_untidy(seed: int) -> None:
    assert sum(run(5000, seed=seed).values()) > 0
