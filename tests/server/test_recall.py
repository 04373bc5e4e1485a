"""Where in a prompt the answers are that a template has written."""

from __future__ import annotations

import random

import pytest

from radixserve.server.recall import gaps_in, identity_of

END, BEGIN = "<|im_end|>\n", "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("text", "parts", "gaps"),
    [
        ("a1b2c", ["a", "b", "c"], ["1", "2"]),
        ("abc", ["a", "b", "c"], ["", ""]),
        ("a1c", ["a", "c"], ["1"]),
        # Something hangs on what stands in a gap.
        ("a1B2c", ["a", "b", "c"], None),
        ("A1b2c", ["a", "b", "c"], None),
        ("a1b2C", ["a", "b", "c"], None),
        # Nobody can say which is which.
        ("a1b1b2c", ["a", "b", "c"], None),
        ("a12c", ["a", "", "c"], None),
        # Both ends would be one.
        ("aba", ["ab", "ba"], None),
    ],
)
def test_what_stands_between_parts_is_found_if_there_is_one_way(
    text: str, parts: list[str], gaps: list[str] | None
):
    assert gaps_in(text, parts) == gaps


def test_gaps_are_those_that_were_filled_or_nobody_says():
    found = 0
    for seed in range(2000):
        chance = random.Random(seed)
        pieces = [
            "".join(chance.choices(("x", "y", END, BEGIN), k=chance.randrange(1, 4)))
            for _ in range(2 * chance.randrange(1, 5) + 1)
        ]
        gaps = gaps_in("".join(pieces), pieces[::2])
        assert gaps in (None, pieces[1::2])
        found += gaps is not None
    assert found > 500


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"a":1.50,"b":[2]}', '{"b": [2], "a": 1.5}', True),
        ('{"a":1e2}', '{"a":100.0}', True),
        ('{"a":1.5}', {"a": 1.5}, True),
        ("", "{}", True),
        ('{"a":1}', '{"a":1.0}', False),
        ('{"a":1}', '{"a":true}', False),
        ('{"a":[1,2]}', '{"a":[2,1]}', False),
        # No float is any of these.
        ('{"a":0.3000000000000000444}', '{"a":0.3000000000000000445}', False),
        ('{"a":12345678901234567890.5}', '{"a":12345678901234567890.6}', False),
        ('{"a":1e400}', '{"a":1e500}', False),
        ('{"a":1e400}', '{"a":"1e400"}', False),
        ('{"a":1e-99999999999999999999}', '{"a":0.0}', False),
        # One of them is a string in JSON, the other no JSON.
        ('"look"', "look", False),
    ],
)
def test_arguments_are_the_same_if_they_stand_for_the_same(one: object, other: object, same: bool):
    assert (identity_of("", [("f", one)]) == identity_of("", [("f", other)])) == same
