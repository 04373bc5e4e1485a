"""Turns that have names: one that nobody goes on from any more lets go of what it alone had.

::

    0 ....... 8 ....... 16 ....... 24
    [ one     ][ two     ][ three    ]     each goes on from the one before
               [ other   ]                 goes on from the first one too
"""

from __future__ import annotations

from collections.abc import Iterable

from radixserve.cache.node import walk
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.terms import DONE, Keeping, Mark, end_of
from tests.cache.serving import (
    append,
    cache_of,
    end,
    evict_one_by_one,
    found,
    held,
    idle,
    nodes,
    prefill,
    serve,
    tick,
)

ONE, TWO, THREE = [*range(8)], [*range(16)], [*range(24)]
OTHER = [*range(8), *range(50, 58)]


def turn(
    cache: PrefixCache,
    name: str,
    tokens: Iterable[int],
    *,
    session: str = "",
    keep: int | None = None,
) -> None:
    """A whole request whose end has a name; it may be kept for so many seconds."""
    lease = prefill(cache, tokens)
    marks = () if keep is None else (Mark(None, keep),)
    cache.finish(lease, Keeping(marks, session, turn=name), lease.reused)
    cache.check()
    tick(cache)


def done(cache: PrefixCache) -> int:
    """Pages that go before all else."""
    root = cache.tree.roots[b""]
    return sum(len(node.pages) for node in walk(root) if node.kept == DONE)


def test_a_dead_branch_goes_first_and_the_living_one_stays_as_it_was():
    cache = cache_of()
    turn(cache, "one", ONE)
    turn(cache, "two", TWO)
    turn(cache, "other", OTHER)
    serve(cache, range(100, 108))
    assert end(cache, "other") == 2
    assert done(cache) == 2
    lost = evict_one_by_one(cache, OTHER, TWO, range(100, 108))
    assert lost[:2] == [0, 0]
    assert lost[2:4] == [1, 1]


def test_what_a_dead_branch_kept_is_kept_no_more_and_its_budget_is_free():
    cache = cache_of()
    turn(cache, "one", ONE, keep=600)
    turn(cache, "two", TWO, keep=60)
    turn(cache, "other", OTHER, keep=60)
    assert held(cache) == 6
    assert end(cache, "other") == 2
    assert held(cache) == 4
    assert [end_of(node.kept) for node in walk(cache.tree.roots[b""]) if node.kept > 0] == [600, 60]


def test_a_turn_that_others_go_on_from_lets_go_of_nothing():
    cache = cache_of()
    turn(cache, "one", ONE, keep=60)
    turn(cache, "two", TWO)
    before = nodes(cache)
    assert end(cache, "one") == 0
    assert (done(cache), held(cache), nodes(cache)) == (0, 2, before)


def test_a_leaf_that_somebody_has_made_longer_is_theirs():
    """The pages of what goes on stand in the same node."""
    cache = cache_of()
    turn(cache, "one", ONE)
    serve(cache, TWO)
    assert len(nodes(cache)) == 1
    assert end(cache, "one") == 0
    assert done(cache) == 0
    assert len(nodes(cache)) == 1


def test_whoever_goes_last_lets_go_of_what_the_others_had_in_any_order():
    for order in (("one", "two", "other"), ("other", "one", "two"), ("two", "other", "one")):
        cache = cache_of()
        turn(cache, "one", ONE)
        turn(cache, "two", TWO)
        turn(cache, "other", OTHER)
        pages = [end(cache, name) for name in order]
        assert sum(each or 0 for each in pages) == done(cache) == 6
        assert found(cache, TWO) == 16
        assert cache.evict(6) == 6
        assert idle(cache)


def test_a_living_turn_in_the_middle_stays():
    cache = cache_of()
    turn(cache, "one", ONE)
    turn(cache, "two", TWO)
    turn(cache, "three", THREE)
    assert end(cache, "one") == 0
    assert end(cache, "three") == 2
    assert done(cache) == 2
    assert end(cache, "two") == 4


def test_what_was_there_before_the_first_turn_is_nobodys_to_let_go_of():
    cache = cache_of()
    serve(cache, ONE)
    turn(cache, "two", TWO)
    turn(cache, "three", THREE)
    assert end(cache, "two") == 0
    assert end(cache, "three") == 4
    assert done(cache) == 4


def test_of_two_turns_that_end_at_the_same_place_the_other_keeps_it():
    cache = cache_of()
    turn(cache, "one", ONE)
    turn(cache, "again", ONE)
    assert end(cache, "one") == 0
    assert done(cache) == 0
    assert end(cache, "again") == 2


def test_ends_inside_a_page_are_told_apart():
    """Whoever goes on from a part of a page copies it; whose page it was goes with its turn."""
    cache = cache_of()
    turn(cache, "one", range(10))
    turn(cache, "two", range(18))
    turn(cache, "other", [*range(10), *range(50, 53)])
    assert end(cache, "other") == 2
    assert end(cache, "one") == 0
    assert end(cache, "two") == 5
    assert done(cache) == 7


def test_a_turn_whose_end_was_evicted_ends_before_that():
    cache = cache_of()
    turn(cache, "one", TWO)
    assert cache.evict(2) == 2
    serve(cache, [*range(8), *range(70, 78)])
    assert end(cache, "one") == 0
    assert done(cache) == 0
    cache.evict(32)
    assert end(cache, "one") is None


def test_a_turn_that_is_gone_on_from_just_now_lets_go_of_nothing():
    cache = cache_of()
    turn(cache, "one", ONE)
    with prefill(cache, TWO) as lease:
        assert end(cache, "one") == 0
        append(lease, 60)
    assert idle(cache)
    assert done(cache) == 0


def test_a_conversation_that_ends_takes_its_turns_with_it():
    cache = cache_of()
    turn(cache, "one", ONE, session="s")
    turn(cache, "two", TWO, session="s")
    assert end(cache, "s") == 4
    assert end(cache, "one") is None
    assert end(cache, "two") is None


def test_a_conversation_whose_last_turn_is_let_go_of_ends_where_that_began():
    cache = cache_of()
    turn(cache, "one", ONE, session="s")
    turn(cache, "two", TWO, session="s")
    assert end(cache, "two") == 2
    assert done(cache) == 2
    serve(cache, THREE)
    assert done(cache) == 0
    assert end(cache, "s") == 0
    assert found(cache, THREE) == 24


def test_a_last_turn_has_no_place_for_another_conversation_to_hold():
    cache = cache_of()
    turn(cache, "one", ONE, session="s")
    turn(cache, "two", TWO, session="t")
    assert end(cache, "t") == 2
    assert end(cache, "one") == 2


def test_turns_of_a_namespace_that_is_purged_are_forgotten():
    cache = cache_of()
    turn(cache, "one", ONE)
    turn(cache, "two", TWO)
    cache.purge(b"")
    assert end(cache, "one") is None
    assert end(cache, "two") is None
