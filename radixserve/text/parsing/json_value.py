"""Where a JSON value ends, in a text that comes in pieces."""

from __future__ import annotations

import re

WHITE = re.compile(r"[ \t\r\n]*")
IN_STRING = re.compile(r'["\\]')
IN_CONTAINER = re.compile(r'["{}\[\]]')
SCALAR_END = re.compile(r"[,}\]\s]")


class JsonValue:
    """Follows one value, whose first character is the first that it is given.

    It counts brackets and minds strings, and judges nothing else. O(1) memory.
    """

    __slots__ = ("_depth", "_escaped", "_quoted", "_scalar", "done")

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._escaped = False
        self._quoted = False
        self._scalar = False

    def feed(self, text: str, start: int) -> int:
        """The end of the value in ``text``, or the end of ``text``. O(characters taken)."""
        while start < len(text) and not self.done:
            if self._escaped:
                self._escaped, start = False, start + 1
            elif self._quoted:
                start = self._string(text, start)
            elif self._scalar:
                end = SCALAR_END.search(text, start)
                self.done = end is not None
                start = end.start() if end else len(text)
            elif self._depth == 0:
                start = self._first(text, start)
            else:
                start = self._container(text, start)
        return start

    def _first(self, text: str, start: int) -> int:
        self._quoted = text[start] == '"'
        self._depth = int(text[start] in "{[")
        self._scalar = not self._quoted and not self._depth
        return start if self._scalar else start + 1

    def _string(self, text: str, start: int) -> int:
        found = IN_STRING.search(text, start)
        if found is None:
            return len(text)
        if found[0] == "\\":
            self._escaped = True
        else:
            self._quoted = False
            self.done = self._depth == 0
        return found.end()

    def _container(self, text: str, start: int) -> int:
        found = IN_CONTAINER.search(text, start)
        if found is None:
            return len(text)
        if found[0] == '"':
            self._quoted = True
        else:
            self._depth += 1 if found[0] in "{[" else -1
            self.done = self._depth == 0
        return found.end()


def skip_white(text: str, start: int) -> int:
    """The position of the first character from ``start`` on that is no white space."""
    found = WHITE.match(text, start)
    assert found is not None
    return found.end()
