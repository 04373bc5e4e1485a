"""Every line of some code as a place where something goes wrong.

A run is watched, to learn which lines it executes. Then it is repeated, and an exception is
raised before one of these lines, or when a function returns.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import CO_GENERATOR
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import radixserve

WORDS = "planted here"
ROOT = Path(radixserve.__file__).parent
EVENTS = ("line", "return")


@dataclass(frozen=True)
class Point:
    """Where, and how often a run comes there."""

    code: CodeType
    line: int
    event: str
    times: int

    def __str__(self) -> str:
        path = Path(self.code.co_filename).name
        return f"{path}:{self.line} in {self.code.co_qualname}, {self.event}"


def points(make: Callable[[], Callable[[], None]], folders: Iterable[str]) -> list[Point]:
    """Those that any run comes to in these folders or files of the package; ``make`` makes one.

    It is the second that is watched: what a process does once, and remembers, is no such place.
    """
    wanted = tuple(str(ROOT / folder) for folder in folders)
    seen: Counter[tuple[CodeType, int, str]] = Counter()

    def inside(frame: FrameType, event: str, _: Any) -> Any:
        # A generator that is not read to its end returns while it is thrown away, and what happens
        # then cannot be raised.
        thrown_away = event == "return" and frame.f_code.co_flags & CO_GENERATOR
        if event in EVENTS and not thrown_away:
            seen[frame.f_code, frame.f_lineno, event] += 1
        return inside

    def call(frame: FrameType, *_: Any) -> Any:
        return inside if frame.f_code.co_filename.startswith(wanted) else None

    make()()
    run = make()
    with _traced(call):
        run()
    return [Point(*place, times) for place, times in seen.items()]


@contextmanager
def planted(point: Point, occurrence: int, error: BaseException) -> Iterator[Callable[[], bool]]:
    """Raise ``error`` when this thread comes to ``point`` for the ``occurrence``-th time. Gives a
    function that says whether it did."""
    left = occurrence

    def inside(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == point.event and frame.f_lineno == point.line and left:
            left -= 1
            if not left:
                raise error
        return inside

    def call(frame: FrameType, *_: Any) -> Any:
        return inside if frame.f_code is point.code and left else None

    with _traced(call):
        yield lambda: not left


def fault(point: Point, seed: int) -> tuple[int, Exception]:
    """One of the times that a run comes there, and an error of one kind or the other."""
    chance = random.Random(f"{seed} {point}")
    kinds = (RuntimeError(WORDS), MemoryError(), torch.OutOfMemoryError(WORDS))
    return chance.randint(1, point.times), chance.choice(kinds)


@contextmanager
def _traced(call: Callable[..., Any]) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)
