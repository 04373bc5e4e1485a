from __future__ import annotations

from array import array

import pytest

from radixserve.cache.errors import CacheError
from radixserve.cache.pages import SCRATCH_PAGE, PagePool


def test_every_page_but_the_scratch_page_is_handed_out_once() -> None:
    pool = PagePool(8)
    assert sorted(pool.take(7)) == [1, 2, 3, 4, 5, 6, 7]
    assert pool.free == 0


def test_the_scratch_page_can_neither_be_shared_nor_given_back() -> None:
    pool = PagePool(4)
    pool.take(3)
    with pytest.raises(CacheError, match="page 0"):
        pool.give_back([SCRATCH_PAGE])
    with pytest.raises(CacheError, match="page 0"):
        pool.share([SCRATCH_PAGE])


def test_taking_nothing_takes_nothing() -> None:
    pool = PagePool(4)
    assert pool.take(0) == array("i")
    assert pool.free == 3


def test_taking_too_many_raises_and_takes_none() -> None:
    pool = PagePool(4)
    with pytest.raises(CacheError, match="4 pages wanted, 3 are free"):
        pool.take(4)
    assert pool.free == 3


def test_a_double_free_raises() -> None:
    pool = PagePool(4)
    (page,) = pool.take(1)
    pool.give_back([page])
    with pytest.raises(CacheError, match="nobody holds it"):
        pool.give_back([page])
    assert pool.free == 3


def test_a_double_free_within_one_call_raises() -> None:
    pool = PagePool(4)
    (page,) = pool.take(1)
    with pytest.raises(CacheError, match="nobody holds it"):
        pool.give_back([page, page])


def test_a_page_that_was_freed_and_taken_again_belongs_to_the_new_holder() -> None:
    pool = PagePool(2)
    (page,) = pool.take(1)
    pool.give_back([page])
    assert list(pool.take(1)) == [page]
    assert pool.holders(page) == 1


def test_a_shared_page_is_free_when_its_last_holder_gives_it_back() -> None:
    pool = PagePool(2)
    taken = pool.take(1)
    pool.share(taken)
    pool.give_back(taken)
    assert (pool.holders(1), pool.free) == (1, 0)
    pool.give_back(taken)
    assert (pool.holders(1), pool.free) == (0, 1)


def test_a_page_that_nobody_holds_cannot_be_shared() -> None:
    with pytest.raises(CacheError, match="shared but nobody holds it"):
        PagePool(2).share([1])


def test_a_page_that_comes_back_in_flight_waits_for_the_step_to_end() -> None:
    pool = PagePool(2)
    taken = pool.take(1)
    step = pool.begin_step()
    pool.give_back(taken)
    assert (pool.free, pool.quarantined, pool.idle()) == (0, 1, [1])
    pool.end_step(step)
    assert (pool.free, pool.quarantined, pool.idle()) == (1, 0, [1])


def test_a_page_waits_for_every_step_that_was_planned_before_it_came_back() -> None:
    pool = PagePool(3)
    first, second = pool.take(1), pool.take(1)
    one = pool.begin_step()
    pool.give_back(first)
    two = pool.begin_step()
    pool.give_back(second)
    three = pool.begin_step()
    pool.end_step(one)
    assert (pool.free, pool.quarantined) == (1, 1)
    pool.end_step(two)
    assert (pool.free, pool.quarantined) == (2, 0)
    pool.end_step(three)


def test_a_page_that_no_step_touches_is_free_at_once() -> None:
    pool = PagePool(2)
    taken = pool.take(1)
    pool.begin_step()
    pool.give_back(taken, unused=True)
    assert (pool.free, pool.quarantined) == (1, 0)


def test_ending_a_step_ends_those_before_it() -> None:
    pool = PagePool(2)
    taken = pool.take(1)
    pool.begin_step()
    pool.give_back(taken)
    pool.end_step(pool.begin_step())
    assert pool.free == 1


def test_a_step_ends_once_and_only_after_it_was_begun() -> None:
    pool = PagePool(2)
    with pytest.raises(CacheError, match="cannot end"):
        pool.end_step(1)
    step = pool.begin_step()
    pool.end_step(step)
    with pytest.raises(CacheError, match="cannot end"):
        pool.end_step(step)
