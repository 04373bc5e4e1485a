"""What crashes, hangs or raises in the other process comes back as one line."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from functools import partial

import pytest

from bench.gpu.errors import CaseError
from bench.gpu.process import Process
from tests.bench.gpu.fragile import Fragile

GUARD = 120.0
"""Seconds that a loaded machine may take for next to nothing."""


@pytest.fixture
def fragile() -> Iterator[Process]:
    process = Process(Fragile, GUARD)
    yield process
    process.close()
    assert not multiprocessing.active_children()


def test_it_is_loaded_once_elsewhere_and_answers_again_and_again(fragile: Process):
    assert fragile.about["backend"] == "fragile"
    assert fragile.about["process"] != os.getpid()
    assert [fragile.ask("double", (n,), GUARD) for n in (2, 5)] == [{"number": 4}, {"number": 10}]


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("fault", "MemoryError: CUDA out of memory"),
        ("crash", "its process has ended with status 7"),
        ("missing", "AttributeError: 'Fragile' object has no attribute 'missing'"),
    ],
)
def test_a_case_that_fails_says_why_and_leaves_nothing_to_ask(
    fragile: Process, method: str, why: str
):
    with pytest.raises(CaseError) as failed:
        fragile.ask(method, (), GUARD)
    assert str(failed.value) == why
    with pytest.raises(CaseError):
        fragile.ask("double", (1,), GUARD)


def test_a_case_that_hangs_is_given_up(fragile: Process):
    with pytest.raises(CaseError, match=r"no answer in 0\.1 s"):
        fragile.ask("hang", (), 0.1)


def test_what_cannot_be_loaded_says_why_in_one_line_and_is_gone():
    with pytest.raises(CaseError) as failed:
        Process(partial(Fragile, loads=False), GUARD)
    assert str(failed.value) == "RuntimeError: CUDA error: no kernel image"
    assert not multiprocessing.active_children()
