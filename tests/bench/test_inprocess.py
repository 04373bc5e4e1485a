from __future__ import annotations

import pytest

from bench.inprocess import tree_spans, useful_kv
from bench.workloads import Lengths
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import pack


def test_pages_of_one_token_waste_only_what_is_reserved_for_the_next_step() -> None:
    short = Lengths(20, 10, spread=0.1)
    one = useful_kv(short, requests=20, page_size=1, seqs=4)["share"]
    large = useful_kv(short, requests=20, page_size=64, seqs=4)["share"]

    assert one == pytest.approx(1.0, abs=0.1)
    assert large < 0.6


def test_a_call_within_a_call_is_counted_once() -> None:
    cache = PrefixCache(64, 4)
    with tree_spans() as spans:
        # Entering by acquire, which is not timed itself, reaches reserve once.
        lease = cache.acquire(pack(range(20)), b"")
        lease.extend(20)
        lease.publish(20)
        lease.release()

    assert spans.calls == 4
    assert spans.seconds > 0


def test_the_cache_is_as_before_once_the_spans_are_taken() -> None:
    before = PrefixCache.reserve
    with tree_spans():
        assert PrefixCache.reserve is not before

    assert PrefixCache.reserve is before
