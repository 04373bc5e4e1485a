"""The attack on times is judged right."""

from __future__ import annotations

import random

import pytest

from bench.tenants.timing import auc, requirements


def test_auc_is_the_share_of_pairs_in_which_the_hit_was_sooner():
    assert auc([1.0, 2.0], [3.0, 4.0]) == 1.0
    assert auc([3.0, 4.0], [1.0, 2.0]) == 0.0
    assert auc([1.0, 3.0], [2.0, 4.0]) == 0.75
    assert auc([1.0, 1.0], [1.0, 1.0]) == 0.5
    rng = random.Random(1)
    hits, misses = ([rng.choice((1.0, 2.0, 3.0)) for _ in range(30)] for _ in range(2))
    pairs = [(hit < miss) + (hit == miss) / 2 for hit in hits for miss in misses]
    assert auc(hits, misses) == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, None),
        ({"auc": 0.54}, "an attacker's times are a guess"),
        ({"auc_own": 0.6}, "one's own are not"),
        ({"leaks": 1}, "no count tells of another"),
    ],
)
def test_each_promise_can_be_broken(change: dict[str, float], broken: str | None):
    timing = {"auc": 0.51, "auc_own": 0.99, "leaks": 0, **change}
    met = requirements({"timing": timing, "counts": {"probes": 3, "leaks": 0, "controls": 3}})
    assert {name for name, holds in met.items() if not holds} == ({broken} if broken else set())
