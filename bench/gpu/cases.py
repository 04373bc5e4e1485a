"""What is measured, on what, in which order: whatever fails, the others go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from time import monotonic
from typing import Any

from bench.gpu.errors import CaseError
from bench.gpu.process import Subject
from bench.gpu.sizes import Sizes

Numbers = dict[str, Any]

START_SECONDS = 300.0
CASE_SECONDS = 150.0

Start = Callable[[float], Subject]
"""(seconds) -> a subject that was loaded within them; raises CaseError."""


@dataclass(frozen=True, slots=True)
class Case:
    """One method of one subject."""

    name: str
    subject: str
    method: str
    arguments: tuple[int, ...] = ()


def cases(sizes: Sizes) -> list[Case]:
    """All of them; those of one subject follow each other, so that it is loaded once."""
    shared, long = (sizes.cached, sizes.own), (sizes.long, sizes.own)
    return [
        Case("rates", "device", "rates"),
        Case("first", "cascade", "first", (sizes.cached,)),
        Case("first-long", "cascade", "first", (sizes.long,)),
        Case("prefill", "cascade", "prefill", (sizes.cached,)),
        Case("decode-apart", "cascade", "decode", (0, sizes.apart)),
        Case("decode-shared", "cascade", "decode", shared),
        Case("decode-long", "cascade", "decode", long),
        Case("idle-apart", "cascade", "idle", (0, sizes.apart)),
        Case("idle-shared", "cascade", "idle", shared),
        Case("load", "cascade", "load"),
        Case("plain-shared", "plain", "decode", shared),
        Case("plain-long", "plain", "decode", long),
        Case("peer-load", "transformers", "load"),
        Case("copies", "kernels", "copies"),
        Case("appends", "kernels", "appends"),
    ]


@dataclass(slots=True)
class Found:
    """What came of the cases so far."""

    numbers: dict[str, Numbers] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """By case: one line each."""
    about: dict[str, Numbers] = field(default_factory=dict)
    """By subject: how it ran."""


def measure(
    planned: Sequence[Case],
    subjects: Mapping[str, Start],
    found: Found,
    *,
    until: float,
    say: Callable[[str], None],
    done: Callable[[], None],
) -> None:
    """Run the cases that are ``planned``, one subject at a time; ``done`` is called after each.

    A subject that failed is loaded anew for its next case; one that cannot be loaded fails all that
    are left of its cases. None begins, and none goes on, after the ``monotonic`` moment ``until``.
    """
    for name, group in groupby(planned, key=lambda case: case.subject):
        subject: Subject | None = None
        lost = None
        for case in group:
            say(f"{name}: {case.name}")
            try:
                if lost is not None:
                    raise CaseError(lost)
                if subject is None:
                    subject = _loaded(subjects[name], until)
                    found.about[name] = subject.about
                seconds = min(CASE_SECONDS, _left(until))
                found.numbers[case.name] = subject.ask(case.method, case.arguments, seconds)
            except CaseError as error:
                found.failures[case.name] = str(error)
                say(f"{case.name} failed: {error}")
                if subject is None:
                    lost = str(error)
                else:
                    subject.close()
                    subject = None
            done()
        if subject is not None:
            subject.close()


def _loaded(start: Start, until: float) -> Subject:
    try:
        return start(min(START_SECONDS, _left(until)))
    except CaseError as error:
        raise CaseError(f"it cannot be loaded: {error}") from error


def _left(until: float) -> float:
    left = until - monotonic()
    if left <= 0:
        raise CaseError("the time was up before it began: --minutes gives it more")
    return left
