"""The cost model of shared runs: what is measured decides."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from radixserve.attention.cascade import ROWS, TOKENS, CascadeCost, Timer, fitted, measured

SIZES = [(rows, tokens) for rows in ROWS for tokens in TOKENS]
TRUTH = CascadeCost(level=1.2e-5, row=3e-8, read=1e-9, compute=1e-10)
BASE = 8e-6
"""Seconds that a layer takes whatever is in it."""


def apart(cost: CascadeCost, rows: int, tokens: int) -> float:
    return BASE + cost.read * rows * tokens


def told(cost: CascadeCost, noise: float = 0.0) -> Timer:
    """A clock for a device of which ``cost`` is true."""
    chance = random.Random(1)

    def timer(rows: int, tokens: int, together: bool) -> float:
        seconds = apart(cost, rows, tokens)
        if together:
            seconds += cost.level - cost.saved(rows, tokens)
        return seconds * (1 + noise * chance.uniform(-1, 1))

    return timer


def test_the_cost_that_explains_the_times_is_found():
    found = fitted(told(TRUTH), SIZES)
    for name in ("level", "row", "read", "compute"):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=1e-6)


def test_noise_does_not_turn_a_decision_that_matters():
    found = fitted(told(TRUTH, noise=0.05), SIZES)
    for rows, tokens in SIZES:
        gain = TRUTH.saved(rows, tokens) - TRUTH.level
        if abs(gain) > 0.5 * apart(TRUTH, rows, tokens):
            assert found.worth([(rows, tokens)]) == (gain > 0)


def test_no_cost_is_negative():
    free = CascadeCost(level=0.0, row=0.0, read=1e-9, compute=0.0)
    for seed in range(5):
        found = fitted(told(free, noise=0.02 * seed), SIZES)
        assert min(found.level, found.row, found.read, found.compute) >= 0


def test_a_level_is_worth_it_once_its_runs_save_more_than_it_costs():
    cost = CascadeCost(level=100.0, row=1.0, read=1.0, compute=0.25)
    # Apart 2 * 80; together 80 read, 40 computed, 2 for the rows.
    assert cost.saved(2, 80) == 160 - 80 - 40 - 2
    assert not cost.worth([(2, 80)] * 2)
    assert cost.worth([(2, 80)] * 3)
    assert not cost.worth([])


def test_one_row_or_no_token_never_saves_anything():
    for cost in (TRUTH, CascadeCost(level=0.0, row=0.0, read=1.0, compute=0.0)):
        assert cost.saved(1, 10_000) <= 0
        assert cost.saved(10_000, 0) <= 0


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"level": 1}', '{"level": "x"}'])
def test_costs_are_kept_for_a_device_and_measured_again_if_the_file_is_broken(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = measured("NVIDIA H200/heads 32", told(TRUTH), SIZES)
    slower = CascadeCost(level=1.0, row=1.0, read=1.0, compute=0.0)
    assert measured("NVIDIA H200/heads 32", told(slower), SIZES) == first
    assert measured("NVIDIA H200/heads 8", told(slower), SIZES) != first
    path = tmp_path / "radixserve" / "cascade" / "NVIDIA-H200-heads-32.json"
    path.write_text(broken)
    assert measured("NVIDIA H200/heads 32", told(slower), SIZES) != first
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "NVIDIA-H200-heads-32.json",
        "NVIDIA-H200-heads-8.json",
    ]
