"""Readers of text that comes in pieces, which take one step after the other through it."""

from __future__ import annotations

from collections.abc import Callable

from radixserve.text.parsing.events import Event


class Steps:
    """Reads an answer. A step takes what it can of ``_text`` from ``_start`` on, and says whether
    another one may follow; it may put another one in its place."""

    reasoning = False

    def __init__(self, first: Callable[[list[Event]], bool]):
        self._step = first
        self._text = ""
        self._start = 0

    def push(self, text: str) -> list[Event]:
        out: list[Event] = []
        self._text = self._text[self._start :] + text
        self._start = 0
        while self._step(out):
            pass
        return out

    def _take_rest(self) -> str:
        rest, self._text, self._start = self._text[self._start :], "", 0
        return rest


class BodySteps:
    """Reads the body of a call. A step returns how far it came."""

    def __init__(self, first: Callable[[str, int, list[Event]], int]):
        self.done = False
        self.failed = False
        self._step = first

    def feed(self, text: str, start: int, out: list[Event]) -> int:
        while start < len(text) and not (self.done or self.failed):
            before, step = start, self._step
            start = step(text, start, out)
            if start == before and self._step == step:
                break
        return start
