"""Lists in a tool's schema with the same entries in another order."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve.explain.divergence import diverge


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ([1, True], [True, 1]),
        ([1, 1.0], [1.0, 1]),
        (
            [{"type": "x", "n": 1}, {"n": 1, "type": "x"}],
            [{"n": 1, "type": "x"}, {"type": "x", "n": 1}],
        ),
    ],
    ids=["a number and a truth", "two numbers", "keys in two orders"],
)
def test_entries_that_are_equal_and_not_the_same_are_known_apart(
    earlier: list[Any], later: list[Any]
):
    ours, theirs = (
        {"tools": [{"name": "get", "input_schema": {"anyOf": each}}]} for each in (earlier, later)
    )
    found = diverge(ours, theirs)
    assert found is not None
    assert (found.guess, found.pointer) == ("list_order", "/tools/0/input_schema/anyOf/0")
