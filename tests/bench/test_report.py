from __future__ import annotations

import pytest

from bench.client import Run, Sample
from bench.report import medians, summarize
from bench.workloads import Workload


def run(samples: list[Sample], **counters: float) -> Run:
    return Run(
        Workload("w", []),
        "on",
        samples=samples,
        prompts=[[1, 2, 3, 4], [1, 2, 3, 9]],
        seconds=4.0,
        counters=counters,
    )


def test_times_count_from_the_moment_of_sending() -> None:
    numbers = summarize(run([Sample(1.0, 1.5, 3.5, prompt=10, output=5)]))

    assert numbers["ttft_p50"] == 0.5
    assert numbers["tpot_p99"] == 0.5
    assert numbers["e2e_p90"] == 2.5
    assert numbers["normalized"] == 0.5
    assert numbers["output_tokens_per_s"] == 5 / 4
    assert numbers["total_tokens_per_s"] == 15 / 4


def test_percentiles_are_those_of_all_samples() -> None:
    samples = [Sample(0.0, float(n), float(n), prompt=1, output=1) for n in range(101)]
    numbers = summarize(run(samples))

    assert [numbers[f"ttft_p{p}"] for p in (50, 90, 99)] == pytest.approx([50, 90, 99])


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    assert summarize(run([Sample(0.0, 1.0, 1.0, prompt=1, output=1)]))["tpot_p50"] is None


def test_the_measured_hit_rate_stands_beside_the_possible_one() -> None:
    numbers = summarize(run([], prompt_tokens=8, prompt_tokens_cached=2, computed_tokens=6))

    assert numbers["hit_rate"] == 0.25
    assert numbers["hit_rate_theory"] == 3 / 8
    assert numbers["computed_tokens"] == 6


def test_a_run_without_answers_has_no_times() -> None:
    numbers = summarize(run([]))

    assert numbers["ttft_p50"] is None
    assert numbers["normalized"] is None
    assert numbers["hit_rate"] is None


def test_medians_are_taken_number_by_number() -> None:
    runs = [{"a": 1.0, "b": 9.0, "s": "x"}, {"a": 3.0, "b": 8.0, "s": "x"}, {"a": 2.0, "b": None}]

    assert medians(runs) == {"repeats": 3, "a": 2.0, "b": 8.5, "s": "x"}
