"""Waiting is what lies between kernels and is longer than a device needs to pass on."""

from __future__ import annotations

import pytest

from bench.gpu.idle import PASSING, idle


def test_gaps_are_shares_of_the_time_from_the_first_kernel_to_the_last():
    found = idle([(10.0, 11.0), (11.0, 13.0), (14.0, 20.0)])
    assert (found.waiting, found.passing) == (0.1, 0.0)
    assert (found.seconds, found.kernels) == (10.0, 3)


def test_short_gaps_are_counted_apart():
    short = PASSING * 0.8
    found = idle([(0.0, 1.0), (1.0 + short, 2.0), (3.0, 4.0)])
    assert found.passing == pytest.approx(short / 4)
    assert found.waiting == pytest.approx(1 / 4)


def test_kernels_that_overlap_count_once_in_any_order():
    found = idle([(6.0, 8.0), (0.0, 5.0), (1.0, 2.0), (4.0, 5.5)])
    assert found.waiting == pytest.approx(0.5 / 8)


def test_without_a_kernel_nothing_is_called_idle():
    with pytest.raises(ValueError, match="no kernel was seen"):
        idle([])
