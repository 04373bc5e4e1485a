"""The whole benchmark on a CPU: every case, on the real engine, with a tiny model."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import run as module
from bench.gpu.cases import cases
from bench.gpu.engine import Ours
from bench.gpu.errors import CaseError
from bench.gpu.geometry import Geometry
from bench.gpu.options import SUBJECTS, add_options, chosen
from bench.gpu.run import run, subjects
from tests.bench.gpu.here import SMALL, Here, Watched

TINY = Geometry.named("tiny")


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(["--device", "cpu", "--geometry", "tiny", *arguments])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Subjects in this process, on ``Watched``, that the benchmark takes for its own."""
    monkeypatch.setattr(module, "chosen", lambda options: (TINY, SMALL))
    made = subjects(TINY, SMALL, Watched())
    return {name: partial(Here, make) for name, make in made.items()}


@pytest.fixture(scope="module")
def ours() -> Ours:
    return Ours(TINY, SMALL, Watched())


def test_every_case_is_measured_and_every_target_judged(
    small: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    output = tmp_path / "bench.json"
    run(options(), output, {"cpu": "here"}, small)
    report = json.loads(output.read_text(encoding="utf-8"))
    assert report["failures"] == {}
    assert set(report["cases"]) == {case.name for case in cases(SMALL)}
    assert [row["failed"] for row in report["results"]] == [None] * 10
    assert all(row["ratio"] is not None and row["measured"] for row in report["results"])
    # What the clock and the kernels of the device say is what is written.
    assert report["cases"]["rates"]["copy_bytes_per_s"] == 2 * 1024 / (0.5 / 8)
    assert report["cases"]["rates"]["operations_per_s"] == 2 * 16**3 / (0.5 / 8)
    waiting = [row for row in report["results"] if "waits" in row["name"]]
    assert [row["ratio"] for row in waiting] == [0.25, 0.25]
    assert not any(row["met"] for row in waiting)
    assert len(report["kernels"]) == 8
    assert report["subjects"]["cascade"]["cascade_attention"]
    assert not report["subjects"]["plain"]["cascade_attention"]
    assert report["subjects"]["transformers"]["allow_block_sharing"]
    assert report["where"] == {"cpu": "here"}
    assert report["versions"]["torch"]
    assert output.with_suffix(".png").stat().st_size > 0
    assert capsys.readouterr().out.count("\n") == 10 + 8


def test_a_case_that_raises_is_reported_and_the_others_go_on(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(self: Ours, shared: int, own: int) -> dict[str, Any]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Ours, "decode", broken)
    output = tmp_path / "bench.json"
    assert not run(options("--only", "device,cascade"), output, {}, small)
    report = json.loads(output.read_text(encoding="utf-8"))
    assert set(report["failures"]) == {"decode-apart", "decode-shared", "decode-long"}
    failed = {row["failed"] for row in report["results"] if row["failed"]}
    assert (
        "decode-apart: RuntimeError: CUDA error: an illegal memory access was encountered" in failed
    )
    assert {"first", "first-long", "prefill", "load", "rates"} <= set(report["cases"])


def test_all_is_well_only_if_every_target_is_met(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def all_met(target: Any, found: Any) -> dict[str, Any]:
        told = {"name": target.name, "ratio": 1.0, "target": 1.0, "rule": "at least", "unit": "x"}
        return told | {"met": True, "failed": None, "measured": {}}

    monkeypatch.setattr(module, "row", all_met)
    assert run(options("--only", "device"), tmp_path / "met.json", {}, small)
    small["device"] = partial(Here, lambda: 1 // 0)
    assert not run(options("--only", "device"), tmp_path / "failed.json", {}, small)


def test_a_first_token_counts_as_warm_only_if_the_prefix_was_cached(ours: Ours):
    found = ours.first(SMALL.cached)
    assert found["cached_tokens"] == SMALL.cached
    assert len(found["cold"]) == len(found["warm"]) == SMALL.repeats
    ours.core.cache.enabled = False
    try:
        with pytest.raises(CaseError, match="0 of 72 tokens were cached, not 64"):
            ours.first(SMALL.cached)
    finally:
        ours.core.cache.enabled = True


def test_a_decoding_step_reads_what_is_shared_once_and_the_rest_for_each_row(ours: Ours):
    found = ours.decode(SMALL.cached, SMALL.own)
    private = found["private"]
    # Each row has generated two tokens or some more before the first of four timed steps.
    assert SMALL.own + SMALL.warm + 1.5 <= private <= SMALL.own + SMALL.warm + 1.5 + SMALL.rows
    assert found["kv_once"] == 64 + 4 * private
    assert found["kv_each"] == 4 * (64 + private)
    assert len(found["windows"]) == SMALL.repeats


def test_nothing_is_left_behind_by_a_case(ours: Ours):
    ours.decode(0, SMALL.apart)
    ours.load()
    assert ours.core.idle
    stats = ours.core.stats()
    assert (stats.running, stats.waiting) == (0, 0)


def test_the_load_reuses_the_prefix_of_each_group(ours: Ours):
    found = ours.load()
    # Of each group all but the first find the system prompt.
    assert found["cached_tokens"] >= (SMALL.rows - SMALL.groups) * SMALL.system
    assert found["tokens_per_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--rows", "6"], "multiple of 4"),
        (["--steps", "0"], "at least 1"),
        (["--shrink", "200"], "less than a token"),
        (["--geometry", "none.json"], "none.json"),
    ],
)
def test_options_that_cannot_work_say_so(arguments: list[str], why: str):
    with pytest.raises((OSError, ValueError), match=why):
        chosen(options(*arguments))


def test_without_options_it_is_llama_8b_with_the_lengths_of_the_table():
    parser = argparse.ArgumentParser()
    add_options(parser)
    told = parser.parse_args([])
    geometry, sizes = chosen(told)
    assert (geometry.name, told.device, told.minutes) == ("llama-3.1-8b", "cuda", 8)
    assert (sizes.cached, sizes.long, sizes.rows, sizes.own) == (8192, 32768, 64, 256)
    assert told.only == SUBJECTS
