from __future__ import annotations

import pytest

from radixserve.terminal.verdict import Kind, Sample, Word, block_size, judge


def samples(
    warm: list[float],
    *,
    cold: tuple[float, ...] = (1.0, 1.1, 0.9),
    control: tuple[float, ...] = (1.0, 1.05, 0.95),
    short: tuple[float, ...] = (0.1,),
    cached: int | None = None,
    cold_cached: int | None = None,
) -> list[Sample]:
    times: dict[Kind, tuple[float, ...] | list[float]] = {
        "cold": cold,
        "warm": warm,
        "control": control,
        "short": short,
    }
    reports = {"warm": cached, "cold": cold_cached, "control": cold_cached, "short": None}
    return [
        Sample(kind=kind, first=first, prompt=1000, cached=reports[kind])
        for kind, many in times.items()
        for first in many
    ]


@pytest.mark.parametrize(
    ("warm", "cached", "word"),
    [
        ([0.1, 0.1, 0.1], 900, "works_reported"),
        ([0.1, 0.1, 0.1], 0, "works_unreported"),
        ([0.1, 0.1, 0.1], None, "works_unreported"),
        ([0.1, 0.1, 3.0], 900, "noisy"),
        ([1.0, 1.1, 0.9], 900, "reported_not_faster"),
        ([1.0, 1.1, 0.9], 0, "off"),
        ([1.0, 1.1, 0.9], None, "off"),
        ([0.1, 1.0, 5.0], None, "noisy"),
    ],
)
def test_times_and_reports_together_give_the_verdict(
    warm: list[float], cached: int | None, word: Word
):
    assert judge(samples(warm, cached=cached, cold_cached=cached and 20)).verdict == word


def test_one_slow_answer_among_five_does_not_hide_a_cache():
    verdict = judge(samples([0.1, 0.1, 0.1, 0.1, 3.0], cached=900, cold_cached=0))
    assert verdict.verdict == "works_reported"
    assert verdict.speedup == pytest.approx(10.0)


def test_a_server_that_only_warms_up_has_no_cache():
    verdict = judge(samples([0.1, 0.1, 0.1], control=(0.1, 0.1, 0.1)))
    assert verdict.verdict == "off"


def test_a_prompt_that_costs_next_to_nothing_says_nothing():
    verdict = judge(samples([0.95, 1.0, 1.0], short=(0.9,), cached=900, cold_cached=0))
    assert verdict.verdict == "noisy"
    assert "--tokens" in verdict.notes[0]
    assert "Reuse is reported" in verdict.notes[1]


def test_numbers_that_cannot_be_true_are_not_believed():
    verdict = judge(samples([1.0, 1.0, 1.0], cached=999, cold_cached=999))
    assert verdict.verdict == "off"
    assert "not to be trusted" in verdict.notes[0]


@pytest.mark.parametrize(
    ("reports", "size"),
    [
        ([(1000, 990), (1020, 1010), (1040, 1030)], 1),
        ([(1000, 976), (1037, 1024), (1075, 1056)], 16),
        ([(1500, 1408), (1700, 1664), (1800, 1792)], 128),
        ([(1000, 990), (1000, 990)], None),
        ([(1500, 1024), (1600, 1024)], None),
        ([(1000, None), (1037, None)], None),
        ([(None, 16), (None, 48)], None),
    ],
)
def test_blocks_show_in_what_is_left_out(
    reports: list[tuple[int | None, int | None]], size: int | None
):
    warm = [
        Sample(kind="warm", first=0.1, prompt=prompt, cached=cached) for prompt, cached in reports
    ]
    assert block_size(warm) == size
