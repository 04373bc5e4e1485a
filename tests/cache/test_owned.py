"""A prefix that has a name owns all of itself: without the name it is kept for others alone.

::

    0 ........ 8 ........ 16
    [ named   ][ chat     ]     goes on from it, and has no name
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.terms import Keeping, Mark
from radixserve.tokens import pack
from tests.cache.serving import (
    append,
    end,
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

NAMED, CHAT = [*range(8)], [*range(16)]


def named(cache: PrefixCache, name: str, tokens: Iterable[int], seconds: int = 600) -> None:
    lease = prefill(cache, tokens)
    cache.finish(lease, Keeping((Mark(None, seconds),), name, owned=True), lease.reused)
    cache.check()
    tick(cache)


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(33, 4, keep=1.0)


def test_what_goes_on_from_it_leaves_it_there_and_keeps_it_no_longer(cache: PrefixCache) -> None:
    named(cache, "p", NAMED)
    serve(cache, CHAT)
    assert held(cache) == 2
    assert end(cache, "p") == 0
    assert held(cache) == 0
    assert found(cache, CHAT) == 16
    tick(cache)
    serve(cache, range(100, 108))
    assert evict_one_by_one(cache, CHAT, range(100, 108)) == [0, 0, 0, 0, 1, 1]


def test_it_stays_kept_as_far_and_as_long_as_others_say(cache: PrefixCache) -> None:
    named(cache, "p", NAMED)
    keep(cache, CHAT, (12, 60))
    assert end(cache, "p") == 0
    assert held(cache) == 3
    cache.time = 60
    assert held(cache) == 0


def test_what_was_there_before_it_had_a_name_is_let_go_of_too(cache: PrefixCache) -> None:
    serve(cache, NAMED)
    named(cache, "p", NAMED)
    assert end(cache, "p") == 2
    assert held(cache) == 0


def test_two_names_of_one_prefix_keep_it_until_both_are_gone(cache: PrefixCache) -> None:
    named(cache, "p", NAMED)
    named(cache, "q", NAMED)
    serve(cache, CHAT)
    assert end(cache, "p") == 0
    assert held(cache) == 2
    assert end(cache, "q") == 0
    assert held(cache) == 0


def test_a_longer_one_keeps_what_it_begins_with(cache: PrefixCache) -> None:
    named(cache, "p", NAMED)
    named(cache, "q", CHAT, 60)
    assert end(cache, "p") == 0
    assert held(cache) == 4
    cache.time = 60
    assert held(cache) == 0


def test_of_a_longer_one_the_shorter_one_stays(cache: PrefixCache) -> None:
    named(cache, "p", NAMED)
    named(cache, "q", CHAT)
    serve(cache, [*CHAT, *range(50, 58)])
    assert end(cache, "q") == 0
    assert held(cache) == 2
    assert end(cache, "p") == 0
    assert held(cache) == 0


def test_who_goes_on_from_it_just_now_keeps_nothing_unasked(cache: PrefixCache) -> None:
    named(cache, "p", NAMED)
    with prefill(cache, CHAT) as lease:
        assert end(cache, "p") == 0
        assert held(cache) == 0
        append(lease, 60)
        cache.check()
    assert held(cache) == 0
    assert idle(cache)


def test_what_is_public_stays_as_it_is(cache: PrefixCache) -> None:
    cache.set_public([pack(NAMED)])
    keep(cache, CHAT, (6, 60))
    named(cache, "p", CHAT)
    serve(cache, [*CHAT, *range(50, 58)])
    assert held(cache) == 2
    assert end(cache, "p") == 0
    assert held(cache) == 0
    assert cache.accounts.public.kept.total(0) == 2


def test_where_all_is_kept_alike_it_goes_on_without_a_seam(cache: PrefixCache) -> None:
    named(cache, "first", range(4))
    named(cache, "p", NAMED)
    keep(cache, range(12), (12, 600))
    assert end(cache, "p") == 0
    assert held(cache) == 3
    assert len(nodes(cache)) == 1
