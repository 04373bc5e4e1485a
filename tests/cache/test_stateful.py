from __future__ import annotations

from tests.cache.oracle import run


def test_twenty_thousand_random_operations_never_read_a_wrong_slot_or_lose_a_page() -> None:
    seen = run(20_000, seed=3)
    for what in (
        "reused",
        "copies",
        "copies on write",
        "copies without a page",
        "refused",
        "adopted",
        "forks",
        "refusals",
        "preemptions",
        "aborts in flight",
        "aborts before copies",
        "pages handed out in flight",
        "steps that failed",
        "three steps in flight",
        "evictions",
        "purges",
        "resets",
        "resets of a tenant",
        "terms",
        "refused for a guarantee",
        "refusals for a guarantee",
        "guarantees broken",
        "public prefixes",
        "reused beyond a public prefix",
        "reused inside a public prefix",
        "keeping granted",
        "keeping partial",
        "keeping refused",
        "sessions that ended",
        "turns that ended",
        "pages owed",
        "the first page went",
        "newcomers before the young",
        "awaited before the coldest",
        "awaited behind the coldest",
    ):
        assert seen[what] > 5, f"the test is blind: {what} happened {seen[what]} times"


def test_other_seeds_hold_too() -> None:
    for seed in range(2, 12):
        assert run(2_000, seed)["reused"] > 50
