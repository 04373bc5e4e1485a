from __future__ import annotations

import argparse

import pytest

from bench.machine import names
from bench.phases import judge
from bench.sizes import NAMES, build
from bench.workloads import shared_tokens


def encode(text: str) -> list[int]:
    return [1000 + ord(letter) for letter in text[::4]]


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_every_workload_can_be_built_shares_something_and_fits(name: str, quick: bool) -> None:
    workload = build(name, quick=quick, scale=1.0, data=None, encode=encode)

    assert workload.name == name
    assert sum(shared_tokens(turn.prompt for turn in workload.turns)) > 0
    assert all(len(turn.prompt) + turn.output < 8192 for turn in workload.turns)


def test_the_scale_multiplies_the_requests() -> None:
    sizes = [
        len(build("rag", quick=False, scale=scale, data=None, encode=encode).turns)
        for scale in (0.5, 2.0)
    ]

    assert sizes == [12, 48]


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert [each["met"] for each in judge({})] == [None] * 4


def test_requirements_are_judged_at_their_bounds() -> None:
    results = {
        "warm": {"ratio": 0.05},
        "kv": {"by_page": [{"page_size": 1, "share": 1.0}, {"page_size": 16, "share": 0.979}]},
        "tree": {"tree_share": 0.0011, "difference": -0.02, "spread": 0.02},
    }

    assert [each["met"] for each in judge(results)] == [True, False, False, True]


def test_a_name_that_does_not_exist_is_refused_with_those_that_do() -> None:
    assert names(("a", "b"))("b,a") == ("b", "a")
    with pytest.raises(argparse.ArgumentTypeError, match="'c' is none of a, b"):
        names(("a", "b"))("a,c")
