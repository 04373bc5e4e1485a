"""A case that fails costs itself alone, and nothing runs for longer than it may."""

from __future__ import annotations

from time import monotonic
from typing import Any

from bench.gpu.cases import CASE_SECONDS, START_SECONDS, Case, Found, measure
from bench.gpu.errors import CaseError

PLANNED = [
    Case("one", "engine", "run", (1,)),
    Case("two", "engine", "run", (2,)),
    Case("three", "engine", "run", (3,)),
    Case("four", "other", "run", (4,)),
]


class Stand:
    """Answers with its argument; fails at those it is told."""

    def __init__(self, log: list[str], fails: tuple[int, ...]):
        self.about = {"backend": "stand-in"}
        self._log, self._fails = log, fails
        log.append("load")

    def ask(self, method: str, arguments: tuple[int, ...], seconds: float) -> dict[str, Any]:
        assert 0 < seconds <= CASE_SECONDS
        (number,) = arguments
        self._log.append(f"{method} {number}")
        if number in self._fails:
            raise CaseError(f"{number} failed")
        return {"number": number}

    def close(self) -> None:
        self._log.append("close")


def ran(
    *, fails: tuple[int, ...] = (), missing: str = "", until: float = 1e9
) -> tuple[Found, list[str], list[int]]:
    """What came of ``PLANNED``, what the subjects were asked, and how much was known after each."""
    log: list[str] = []
    found, known = Found(), []

    def start(name: str, seconds: float) -> Stand:
        assert 0 < seconds <= START_SECONDS
        if name == missing:
            log.append("no load")
            raise CaseError("no FlashInfer")
        return Stand(log, fails)

    measure(
        PLANNED,
        {name: lambda seconds, name=name: start(name, seconds) for name in ("engine", "other")},
        found,
        until=monotonic() + until,
        say=lambda line: None,
        done=lambda: known.append(len(found.numbers) + len(found.failures)),
    )
    return found, log, known


def test_cases_of_one_subject_share_it_and_each_is_known_as_soon_as_it_is_done():
    found, log, known = ran()
    assert log == ["load", "run 1", "run 2", "run 3", "close", "load", "run 4", "close"]
    assert found.numbers == {
        name: {"number": at} for at, name in enumerate(("one", "two", "three", "four"), 1)
    }
    assert found.about == {name: {"backend": "stand-in"} for name in ("engine", "other")}
    assert known == [1, 2, 3, 4]


def test_after_a_failure_the_next_case_has_a_subject_that_is_new():
    found, log, _ = ran(fails=(2,))
    assert log[:7] == ["load", "run 1", "run 2", "close", "load", "run 3", "close"]
    assert found.failures == {"two": "2 failed"}
    assert set(found.numbers) == {"one", "three", "four"}


def test_a_subject_that_cannot_be_loaded_is_tried_once_and_fails_all_its_cases():
    found, log, known = ran(missing="engine")
    assert log == ["no load", "load", "run 4", "close"]
    assert set(found.failures.values()) == {"it cannot be loaded: no FlashInfer"}
    assert set(found.failures) == {"one", "two", "three"}
    assert known == [1, 2, 3, 4]


def test_when_the_time_is_up_nothing_begins():
    found, log, _ = ran(until=-1)
    assert log == []
    assert set(found.failures) == {"one", "two", "three", "four"}
    assert all("--minutes" in why for why in found.failures.values())
