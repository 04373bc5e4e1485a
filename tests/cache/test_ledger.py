"""``check()`` fails on one planted fault of each kind in pages, leases and copies."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from radixserve.cache.errors import CacheError
from radixserve.cache.lease import Lease
from radixserve.cache.pages import PageCopy
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import pack
from tests.cache.busy import Busy, check_finds


def _page_in_two_nodes(busy: Busy) -> None:
    busy.child(0).pages[0] = busy.child(2).pages[0]


def _page_in_tree_and_free(busy: Busy) -> None:
    busy.cache.pool._free.append(busy.trunk.pages[0])


def _page_in_tree_and_private(busy: Busy) -> None:
    page = busy.child(1).pages[0]
    busy.cache.pool.share([page])
    busy.purged.pages.append(page)


def _page_free_twice(busy: Busy) -> None:
    busy.cache.pool._free.append(busy.cache.pool._free[0])


def _page_free_and_waiting(busy: Busy) -> None:
    busy.cache.pool._free.append(busy.cache.pool._quarantine[0][1])


def _page_leaked(busy: Busy) -> None:
    busy.cache.pool._free.pop()


def _page_leaked_by_a_lease(busy: Busy) -> None:
    busy.lease.pages.pop()


def _page_held_by_nobody(busy: Busy) -> None:
    busy.cache.pool.take(1)


def _holder_forgotten(busy: Busy) -> None:
    busy.cache.pool.share(busy.lease.pages[-1:])


def _scratch_page_free(busy: Busy) -> None:
    busy.cache.pool._free.append(0)


def _scratch_page_leased(busy: Busy) -> None:
    busy.lease.pages.append(0)


def _page_waiting_for_no_step(busy: Busy) -> None:
    busy.cache.pool.ended = busy.cache.pool.begun


def _released_lease_on_the_books(busy: Busy) -> None:
    busy.lease.released = True


def _lease_off_the_books(busy: Busy) -> None:
    busy.cache.leases.discard(busy.lease)


def _lease_row_differs(busy: Busy) -> None:
    pages = busy.lease.pages
    pages[0], pages[1] = pages[1], pages[0]


def _lease_tokens_differ(busy: Busy) -> None:
    assert isinstance(busy.lease.tokens, bytearray)
    busy.lease.tokens[3] = 77


def _lease_anchored_elsewhere(busy: Busy) -> None:
    busy.lease.published -= 4
    busy.cache.pool.share(busy.lease.pages[2:3])


def _lease_computed_too_much(busy: Busy) -> None:
    busy.lease.computed = 17


def _lease_computed_too_little(busy: Busy) -> None:
    busy.lease.computed = busy.lease.published - 1


def _copy_without_its_pin(busy: Busy) -> None:
    ((_, source),) = busy.reader.pending
    assert source is not None
    busy.cache.tree.unpin(source, now=0)


def _copy_without_its_hold(busy: Busy) -> None:
    ((copy, _),) = busy.writer.pending
    busy.cache.pool.give_back([copy.source])


def _copy_into_a_page_of_another(busy: Busy) -> None:
    ((copy, source),) = busy.reader.pending
    busy.reader.pending[0] = (PageCopy(copy.source, busy.trunk.pages[0], copy.tokens), source)


def _copy_from_a_page_that_is_not_pinned(busy: Busy) -> None:
    ((copy, source),) = busy.reader.pending
    other = busy.child(2).pages[0]
    busy.reader.pending[0] = (PageCopy(other, copy.target, copy.tokens), source)


FAULTS: list[tuple[Callable[[Busy], None], str]] = [
    (_page_in_two_nodes, "stands 2 times"),
    (_page_in_tree_and_free, "is in 2 places"),
    (_page_in_tree_and_private, "other holders"),
    (_page_free_twice, "is in 2 places"),
    (_page_free_and_waiting, "is in 2 places"),
    (_page_leaked, "is in 0 places"),
    (_page_leaked_by_a_lease, "holders"),
    (_page_held_by_nobody, "has 0 holders"),
    (_holder_forgotten, "holders"),
    (_scratch_page_free, "scratch"),
    (_scratch_page_leased, "scratch"),
    (_page_waiting_for_no_step, "waits for a step"),
    (_released_lease_on_the_books, "released lease"),
    (_lease_off_the_books, "holders"),
    (_lease_row_differs, "row differs"),
    (_lease_tokens_differ, "tokens differ"),
    (_lease_anchored_elsewhere, "other holders|not anchored"),
    (_lease_computed_too_much, "more than it has pages"),
    (_lease_computed_too_little, "more than it has pages"),
    (_copy_without_its_pin, "pins, but"),
    (_copy_without_its_hold, "holders"),
    (_copy_into_a_page_of_another, "into a page of another"),
    (_copy_from_a_page_that_is_not_pinned, "not pinned"),
]


@pytest.mark.parametrize(("plant", "message"), FAULTS, ids=[f[0].__name__[1:] for f in FAULTS])
def test_a_planted_fault_is_found(plant: Callable[[Busy], None], message: str) -> None:
    check_finds(plant, message)


def test_a_busy_cache_without_a_fault_passes() -> None:
    Busy()


def test_an_empty_cache_passes() -> None:
    PrefixCache(1, 16).check()


def test_a_lease_of_a_root_that_is_gone_is_found() -> None:
    cache = PrefixCache(8, 4)
    cache.acquire(pack(range(4)), b"")
    cache.check()
    cache.tree.roots.clear()
    with pytest.raises(CacheError):
        cache.check()


def test_private_pages_at_different_places_of_two_rows_are_found() -> None:
    cache = PrefixCache(16, 4)
    one = cache.acquire(pack(range(12)), b"")
    two = cache.acquire(pack(range(50, 62)), b"")
    assert one.extend(12)
    assert two.extend(4)
    _steal(cache, one, two)
    with pytest.raises(CacheError):
        cache.check()


def _steal(cache: PrefixCache, one: Lease, two: Lease) -> None:
    page = array("i", [one.pages[2]])
    cache.pool.share(page)
    two.pages.extend(page)
