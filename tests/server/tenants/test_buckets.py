"""Token buckets: even, bounded, and honest about the wait."""

from __future__ import annotations

import random

import pytest

from radixserve.server.tenants.buckets import Bucket
from radixserve.server.tenants.meter import Meter, OverLimitError, duration
from radixserve.tenants.file import Limits
from tests.server.tenants.people import Hands


def test_a_bucket_holds_a_minutes_worth_and_fills_evenly():
    bucket = Bucket.full(60, now=0.0)
    assert [bucket.take(1, 0.0) for _ in range(61)] == [1.0] * 60 + [0.0]
    assert bucket.wait(1, 0.0) == pytest.approx(1.0)
    assert bucket.take(1, 0.5) == 0.0
    assert bucket.take(1, 1.0) == 1.0
    assert bucket.remaining(1.0) == 0
    assert bucket.remaining(1000.0) == 60, "it does not overflow"


def test_what_is_too_large_for_a_bucket_gets_all_of_a_full_one_and_is_charged_in_the_end():
    bucket = Bucket.full(100, now=0.0)
    assert bucket.take(1, 0.0) == 1.0
    assert bucket.take(250, 0.0) == 0.0
    assert bucket.wait(250, 0.0) == pytest.approx(0.6)
    assert bucket.take(250, 0.6) == 100.0
    bucket.give(100 - 250, 0.6)
    assert bucket.remaining(0.6) == 0
    assert bucket.wait(10, 0.6) == pytest.approx(160 * 0.6)


def test_never_more_is_let_through_than_the_rate_allows():
    chance = random.Random(3)
    bucket, taken, now = Bucket.full(600, now=0.0), 0.0, 0.0
    for _ in range(5000):
        now += chance.expovariate(5.0)
        wanted = chance.uniform(1, 200)
        got = bucket.take(wanted, now)
        if not got:
            wait = bucket.wait(wanted, now)
            assert bucket.take(wanted, now + wait * 0.99) == 0.0
            now += wait
            got = bucket.take(wanted, now)
            assert got == wanted
        taken += got
        assert taken <= 600 + now * 10 + 1e-3
    assert taken > now * 10 * 0.9


def test_a_clock_that_goes_back_fills_nothing():
    bucket = Bucket.full(60, now=100.0)
    bucket.take(60, 100.0)
    assert bucket.remaining(50.0) == 0
    assert bucket.remaining(100.0) == 0
    assert bucket.remaining(101.0) == 1


def test_a_new_limit_forgets_nothing_of_what_was_used():
    clock = Hands()
    meter = Meter("a", Limits(requests_per_minute=10), clock)
    for _ in range(8):
        meter.enter()
    meter.set_limits(Limits(requests_per_minute=100))
    assert meter.remaining() == {"requests": 2}
    meter.set_limits(Limits(requests_per_minute=1, tokens_per_minute=5))
    assert meter.remaining() == {"requests": 1, "tokens": 5}
    meter.set_limits(Limits())
    for _ in range(100):
        meter.enter()
    assert meter.headers() == {}


def test_a_wait_that_would_be_long_is_told_as_the_longest_that_clients_wait():
    meter = Meter("a", Limits(tokens_per_minute=1), Hands())
    meter.settle(meter.reserve(1), prompt=1000, cached=0, completion=0)
    with pytest.raises(OverLimitError) as refusal:
        meter.reserve(1)
    assert refusal.value.headers == {"retry-after": "120", "retry-after-ms": "120000"}


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0.0, "0ms"), (0.0171, "18ms"), (1.0, "1s"), (8.64, "8.64s"), (59.99, "59.99s"),
     (60.0, "1m0s"), (359.2, "6m0s")],
)  # fmt: skip
def test_durations_are_written_as_clients_know_them(seconds: float, written: str):
    assert duration(seconds) == written
