"""Ratios and verdicts, from numbers that were worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from bench.gpu.cases import Found, cases
from bench.gpu.geometry import Geometry
from bench.gpu.sizes import Sizes
from bench.gpu.targets import moved, row, targets

GEOMETRY = Geometry.named("llama-3.1-8b")
SIZES = Sizes()
NAMES = (
    "first", "first-long", "shared", "shared roofline", "long", "apart roofline", "idle apart",
    "idle shared", "prefill", "peer",
)  # fmt: skip


def numbers() -> dict[str, dict[str, Any]]:
    """A GPU that copies 4 TB/s and multiplies at 800 TFLOP/s."""
    return {
        "rates": {"copy_bytes_per_s": 4e12, "operations_per_s": 8e14},
        "first": {"cold_s": 0.150, "warm_s": 0.005},
        "first-long": {"cold_s": 0.700, "warm_s": 0.008},
        # 8192 + 64 x 256 tokens: 15.01 GB + 3.22 GB, 4.56 ms.
        "decode-shared": {"step_s": 0.006, "kv_once": 24_576.0},
        "plain-shared": {"step_s": 0.021},
        "decode-long": {"step_s": 0.010},
        "plain-long": {"step_s": 0.070},
        # 64 x 2048 tokens: 15.01 GB + 17.18 GB, 8.05 ms.
        "decode-apart": {"step_s": 0.011, "kv_once": 131_072.0},
        "idle-apart": {"waiting": 0.01, "passing": 0.05, "seconds": 0.3, "kernels": 9},
        "idle-shared": {"waiting": 0.30, "passing": 0.05, "seconds": 0.3, "kernels": 9},
        # 128.9 tera operations: 161 ms.
        "prefill": {"seconds": 0.230, "tokens": 8192},
        "load": {"tokens_per_s": 6000.0, "cached_tokens": 5},
        "peer-load": {"tokens_per_s": 2000.0},
    }


def judged(**changed: Any) -> dict[str, dict[str, Any]]:
    found = Found(numbers() | changed)
    rows = [row(target, found) for target in targets(GEOMETRY, SIZES)]
    return dict(zip(NAMES, rows, strict=True))


def test_each_target_is_judged_by_its_ratio():
    rows = judged()
    ratios = {name: each["ratio"] for name, each in rows.items()}
    assert ratios == pytest.approx(
        {
            "first": 30.0,
            "first-long": 87.5,
            "shared": 3.5,
            "shared roofline": 18.231e9 / 4e12 / 0.006,
            "long": 7.0,
            "apart roofline": 32.190e9 / 4e12 / 0.011,
            "idle apart": 0.01,
            "idle shared": 0.30,
            "prefill": 1.2885e14 / 8e14 / 0.230,
            "peer": 3.0,
        },
        rel=1e-3,
    )
    met = {name for name, each in rows.items() if each["met"]}
    assert met == {"first", "shared", "shared roofline", "idle apart", "prefill", "peer"}
    assert not any(each["failed"] for each in rows.values())


def test_the_bounds_are_those_of_the_table():
    bounds = {name: each["target"] for name, each in judged().items()}
    assert bounds == {
        "first": 25, "first-long": 100, "shared": 3, "shared roofline": 0.7, "long": 8,
        "apart roofline": 0.8, "idle apart": 0.02, "idle shared": 0.02, "prefill": 0.6, "peer": 3,
    }  # fmt: skip


def test_a_ratio_that_equals_its_bound_has_met_it():
    at = {"waiting": 0.02, "passing": 0.0, "seconds": 0.3, "kernels": 9}
    rows = judged(**{"idle-apart": at, "idle-shared": at | {"waiting": 0.0201}})
    assert rows["idle apart"]["met"]
    assert not rows["idle shared"]["met"]


def test_a_row_holds_the_numbers_that_its_ratio_comes_of():
    measured = judged()["shared roofline"]["measured"]
    assert measured["step_s"] == 0.006
    assert measured["copy_bytes_per_s"] == 4e12
    assert measured["bytes"] == GEOMETRY.weight_bytes + 24_576 * 131_072
    assert measured["floor_s"] == measured["bytes"] / 4e12


def test_what_a_case_lacks_is_told_by_every_target_that_needs_it():
    there = numbers()
    del there["plain-shared"], there["rates"]
    found = Found(there, {"plain-shared": "CUDA out of memory"})
    rows = dict(zip(NAMES, (row(each, found) for each in targets(GEOMETRY, SIZES)), strict=True))
    failed = {name: each["failed"] for name, each in rows.items() if each["failed"]}
    assert failed == {
        "shared": "plain-shared: CUDA out of memory",
        "shared roofline": "rates: it was not run",
        "apart roofline": "rates: it was not run",
        "prefill": "rates: it was not run",
    }
    assert not any(rows[name]["met"] for name in failed)
    assert rows["first"]["met"]


def test_every_case_that_a_target_needs_is_run():
    run = {case.name for case in cases(SIZES)}
    assert {name for target in targets(GEOMETRY, SIZES) for name in target.needs} <= run


def test_kernels_stand_beside_the_copy_of_the_same_run():
    rows = [{"name": "512 pages, ours", "microseconds": 1.0, "gb_per_s": 3000.0}]
    found = Found(numbers() | {"copies": {"rows": rows}}, {"appends": "no Triton"})
    one, failed = moved(found)
    assert one["of_copy"] == 0.75
    assert failed == {"name": "appends", "failed": "no Triton"}
    del found.numbers["rates"]
    assert moved(found)[0]["of_copy"] is None
