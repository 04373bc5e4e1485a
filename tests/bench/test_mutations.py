"""Generated pairs of requests are what they say they are, and are found out without a server."""

from __future__ import annotations

import pytest

from bench.mutations import KINDS, Mutation, mutations
from radixserve.explain.divergence import diverge

MADE = list(mutations(20 * len(KINDS), seed=1))


def test_they_are_the_same_for_the_same_seed() -> None:
    assert list(mutations(9)) == list(mutations(9))
    assert list(mutations(9)) != list(mutations(9, seed=2))


@pytest.mark.parametrize("kind", KINDS)
def test_each_differs_as_it_says(kind: str) -> None:
    for each in MADE:
        if each.kind == kind:
            # Not by ==, to which the order of keys is nothing.
            assert (repr(each.earlier) == repr(each.later)) == (kind == "eviction")
            assert bool(each.between) == (kind == "eviction")


def parted(each: Mutation) -> bool:
    return each.reason == "diverged" and each.guess != "template"


@pytest.mark.parametrize("each", list(filter(parted, MADE)), ids=lambda each: each.kind)
def test_the_place_and_the_guess_are_right(each: Mutation) -> None:
    found = diverge(each.earlier, each.later)
    assert found is not None
    assert (found.guess, found.pointer) == (each.guess, each.pointer)
    assert each.character in (None, found.character)
