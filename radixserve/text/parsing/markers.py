"""Finds markers in a text that comes in pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence


class Markers:
    """Some literal strings, to be found in a text whose end is not known yet.

    The leftmost one counts, and of two that begin at the same place the longer one.
    """

    __slots__ = ("_begun", "_longest", "_whole", "texts")

    def __init__(self, texts: Sequence[str]):
        self.texts = tuple(sorted(set(texts), key=lambda text: (-len(text), text)))
        heads = {text[:size] for text in self.texts for size in range(1, len(text))}
        ordered = sorted(heads, key=lambda head: (-len(head), head))
        self._whole = re.compile("|".join(map(re.escape, self.texts)))
        self._begun = re.compile(f"(?:{'|'.join(map(re.escape, ordered)) or '(?!)'})\\Z")
        self._longest = len(self.texts[0])

    def find(self, text: str, start: int) -> tuple[int, int] | None:
        """Where the first marker from ``start`` on begins and ends, or None.

        None also where a longer or an earlier one could still come of the end of ``text``. O(text).
        """
        found = self._whole.search(text, start)
        if found is None:
            return None
        if len(text) - found.start() < self._longest and self.held(text, start) <= found.start():
            return None
        return found.span()

    def last(self, text: str, start: int) -> tuple[int, int] | None:
        """As ``find``, for a text that has ended."""
        found = self._whole.search(text, start)
        return found.span() if found else None

    def held(self, text: str, start: int) -> int:
        """Where the end of ``text`` begins that could become a marker. O(longest marker)."""
        begun = self._begun.search(text, max(start, len(text) - self._longest + 1))
        return begun.start() if begun else len(text)
