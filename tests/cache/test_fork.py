from __future__ import annotations

import pytest

from radixserve.cache.errors import CacheError
from radixserve.cache.pages import PageCopy
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import pack
from tests.cache.serving import append, found, idle, prefill, serve


def test_a_fork_shares_every_page_and_copies_the_open_block_when_it_is_written() -> None:
    cache = PrefixCache(16, 4)
    lease = prefill(cache, range(6))
    twin = lease.fork(bytearray(lease.tokens))
    assert twin.pages == lease.pages
    assert (twin.computed, twin.published, twin.reused) == (6, 4, 6)
    shared = lease.pages[1]
    cache.check()
    assert twin.extend(1)
    assert twin.copies == [PageCopy(shared, twin.pages[1], 2)]
    assert twin.pages[0] == lease.pages[0]
    assert twin.pages[1] != lease.pages[1] == shared
    cache.check()
    twin.copied()
    assert cache.pool.holders(shared) == 1
    assert lease.extend(1)
    assert not lease.copies, "the last holder writes in place"


def test_whoever_writes_first_copies_also_where_it_was_there_before() -> None:
    cache = PrefixCache(16, 4)
    lease = prefill(cache, range(6))
    twin = lease.fork(bytearray(lease.tokens))
    assert lease.extend(1)
    assert lease.copies == [PageCopy(twin.pages[1], lease.pages[1], 2)]
    assert lease.pages[1] != twin.pages[1]
    cache.check()


def test_the_shared_block_survives_its_other_holders_until_the_copy_has_run() -> None:
    cache = PrefixCache(16, 4)
    lease = prefill(cache, range(6))
    twin = lease.fork(bytearray(lease.tokens))
    assert twin.extend(1)
    (copy,) = twin.copies
    lease.release()
    assert cache.pool.holders(copy.source) == 1
    cache.check()
    twin.copied()
    assert cache.pool.holders(copy.source) == 0
    twin.release()
    assert idle(cache)


def test_a_fork_on_a_block_boundary_copies_nothing() -> None:
    cache = PrefixCache(16, 4)
    lease = prefill(cache, range(8))
    twin = lease.fork(bytearray(lease.tokens))
    append(twin, 1)
    append(lease, 2)
    assert twin.pages[:2] == lease.pages[:2]
    assert twin.pages[2] != lease.pages[2]
    cache.check()


def test_reserved_pages_are_not_shared_with_a_fork() -> None:
    cache = PrefixCache(16, 4)
    lease = prefill(cache, range(6))
    assert lease.extend(8)
    twin = lease.fork(bytearray(lease.tokens))
    assert len(lease.pages) == 4
    assert len(twin.pages) == 2
    cache.check()


def test_a_copy_on_write_that_finds_no_page_changes_nothing() -> None:
    cache = PrefixCache(3, 4)
    lease = prefill(cache, range(6))
    twin = lease.fork(bytearray(lease.tokens))
    assert not twin.extend(1)
    assert not twin.copies
    assert twin.pages == lease.pages
    lease.release()
    assert twin.extend(1), "the only holder needs no copy"
    assert not twin.copies
    cache.check()


def test_forks_of_one_prompt_keep_one_copy_of_it() -> None:
    cache = PrefixCache(64, 4)
    lease = prefill(cache, range(10))
    twins = [lease.fork(bytearray(lease.tokens)) for _ in range(4)]
    for number, twin in enumerate(twins):
        append(twin, 50 + number, 60, 70, 80)
    append(lease, 49, 60, 70, 80)
    assert cache.tree.pages == 2 + 5
    for each in (*twins, lease):
        assert each.pages[:2] == lease.pages[:2]
        each.release()
        cache.check()
    assert idle(cache)
    assert found(cache, [*range(10), 52, 60, 70, 80]) == 14


def test_forking_before_the_copies_ran_raises() -> None:
    cache = PrefixCache(16, 4)
    serve(cache, range(4))
    lease = cache.acquire(pack([0, 1, 9, 9]), b"")
    with pytest.raises(CacheError, match="before its copies"):
        lease.fork(pack([0, 1, 9, 9]))
