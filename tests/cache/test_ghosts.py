"""What was evicted is remembered: when, and whether it made room for its own tenant."""

from __future__ import annotations

import pytest

from radixserve.cache.ghosts import FEWEST, Eviction
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import pack
from tests.cache.serving import serve, serve_as

PAGE = 4


def test_the_first_block_that_is_missing_is_known():
    cache = PrefixCache(101, PAGE)
    prompt = pack(range(40))
    serve(cache, range(40))
    assert cache.missed(prompt, 28, "") is None
    cache.time = 10.0
    assert cache.evict(3) == 3
    cache.time = 12.5
    again = cache.acquire(prompt, b"")
    assert again.missed == Eviction(2.5, False)
    again.release()
    assert cache.missed(prompt, 28, "") == Eviction(2.5, False)
    assert cache.missed(prompt, 24, "") is None
    assert cache.missed(prompt, 28, "another") is None


@pytest.mark.parametrize(
    ("served", "asked"),
    [(18, 18), (19, 18), (18, 30), (20, 18)],
    ids=["the same", "without its answer", "gone on with", "without the end of its block"],
)
def test_a_part_of_a_block_is_known_too(served: int, asked: int):
    cache = PrefixCache(101, PAGE)
    serve(cache, range(served))
    assert cache.evict(1) == 1
    lease = cache.acquire(pack(range(asked)), b"")
    assert lease.reused == 16
    assert lease.missed == Eviction(0.0, False)
    lease.release()
    assert cache.missed(pack([*range(16), *range(90, 99)]), 16, "") is None


def test_what_was_cut_off_further_up_later_is_what_is_missing_now():
    cache = PrefixCache(101, PAGE)
    prompt = pack(range(40))
    serve(cache, range(40))
    cache.time = 1.0
    cache.evict(2)
    cache.time = 4.0
    cache.evict(5)
    cache.time = 6.0
    lease = cache.acquire(prompt, b"")
    assert lease.reused == 12
    assert lease.missed == Eviction(2.0, False)
    lease.release()


def test_a_tenant_that_needs_room_itself_is_told_so():
    cache = PrefixCache(11, PAGE)
    serve(cache, range(32))
    serve(cache, range(100, 132))
    lease = cache.acquire(pack(range(32)), b"")
    assert lease.missed is not None
    assert lease.missed.own
    lease.release()


def test_who_needed_the_room_is_not_told():
    cache = PrefixCache(11, PAGE)
    serve_as(cache, "one", range(32))
    serve_as(cache, "two", range(100, 132))
    lease = cache.reserve(pack(range(32)), b"one", 0, tenant="one")
    assert lease is not None
    assert lease.missed is not None
    assert not lease.missed.own
    lease.release()


def test_what_is_public_says_nothing():
    cache = PrefixCache(101, PAGE)
    prompt = pack(range(40))
    cache.set_public([prompt[: 4 * 20]])
    serve(cache, range(40))
    cache.evict(cache.available)
    lease = cache.acquire(prompt, b"")
    assert lease.reused == 0
    assert lease.missed is None
    lease.release()


def test_most_of_as_many_evictions_as_there_are_pages_are_known():
    count = 2 * FEWEST
    cache = PrefixCache(count + 1, PAGE)
    prompts = [range(PAGE * number, PAGE * (number + 1)) for number in range(count)]
    for prompt in prompts:
        serve(cache, prompt)
    for _ in prompts:
        assert cache.evict(1) == 1
    known = [cache.missed(pack(prompt), 0, "") is not None for prompt in prompts]
    assert sum(known) > 0.7 * count


def test_the_memory_is_bounded_and_what_is_new_takes_the_place_of_what_is_old():
    cache = PrefixCache(11, PAGE)
    ghosts = cache.allocator.ghosts
    for number in range(2 * FEWEST):
        serve(cache, range(100 * number, 100 * number + 40))
    assert len(ghosts._times) == FEWEST
    first = 100 * (2 * FEWEST - 2)
    last = pack(range(first, first + 40))
    assert cache.missed(last, cache.peek(last, b"").blocks, "") is not None
