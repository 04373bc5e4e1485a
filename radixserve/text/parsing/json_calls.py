"""Calls as JSON objects: ``{"name": "f", "arguments": {...}}``, alone or in a list."""

from __future__ import annotations

import json
from collections.abc import Callable, Container

from radixserve.text.parsing.events import Event
from radixserve.text.parsing.json_value import JsonValue, skip_white
from radixserve.text.parsing.names import LONGEST_NAME, is_name

NAME_KEYS = frozenset({"name"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
LABEL_KEYS = frozenset({"type", "id", "index"})

Step = Callable[[str, int, list[Event]], int]


class JsonCalls:
    """Passes arguments on as they are written, as soon as the tool's name is known.

    Args:
        known: Names that may be called; None is any. With names, an object with other keys than a
            call has is no call: so that JSON which is an answer can be told from one.
    """

    def __init__(self, known: Container[str] | None = None):
        self.done = False
        self.failed = False
        self._known = known
        self._in_list = False
        self._step: Step = self._begin
        self._new_call()

    def _new_call(self) -> None:
        self._name: str | None = None
        self._has_arguments = False
        self._early: list[str] = []
        """Arguments that came before the name."""

    def feed(self, text: str, start: int, out: list[Event]) -> int:
        while start < len(text) and not (self.done or self.failed):
            start = self._step(text, start, out)
        return start

    def finish(self, out: list[Event]) -> None:
        if self._name is not None and not self._has_arguments:
            out.append(Event("arguments", "{}"))

    def _begin(self, text: str, start: int, out: list[Event]) -> int:
        start = skip_white(text, start)
        if start == len(text):
            return start
        if text[start] == "[" and not self._in_list:
            self._in_list = True
        elif text[start] == "{":
            self._step = self._member
        else:
            return self._fail(start)
        return start + 1

    def _between(self, text: str, start: int, out: list[Event]) -> int:
        """Behind a call of a list."""
        start = skip_white(text, start)
        if start == len(text) or text[start] == ",":
            return min(start + 1, len(text))
        if text[start] == "{":
            self._step = self._member
        elif text[start] == "]":
            self.done = True
        else:
            return self._fail(start)
        return start + 1

    def _member(self, text: str, start: int, out: list[Event]) -> int:
        start = skip_white(text, start)
        if start == len(text) or text[start] == ",":
            return min(start + 1, len(text))
        if text[start] == '"':
            self._step = _Text(self, self._take_key).feed
            return start
        if text[start] != "}" or self._name is None:
            return self._fail(start)
        if not self._has_arguments:
            out.append(Event("arguments", "{}"))
        self._new_call()
        self._step = self._between
        self.done = not self._in_list
        return start + 1

    def _take_key(self, key: str, out: list[Event]) -> None:
        if key not in NAME_KEYS | ARGUMENT_KEYS | LABEL_KEYS and self._known is not None:
            self.failed = True
        self._key = key
        self._step = self._colon

    def _colon(self, text: str, start: int, out: list[Event]) -> int:
        start = skip_white(text, start)
        if start == len(text):
            return start
        if text[start] != ":":
            return self._fail(start)
        self._step = self._value
        return start + 1

    def _value(self, text: str, start: int, out: list[Event]) -> int:
        start = skip_white(text, start)
        if start == len(text):
            return start
        if text[start] in ",}]":
            return self._fail(start)
        if self._key in NAME_KEYS and self._name is None:
            if text[start] != '"':
                return self._fail(start)
            self._step = _Text(self, self._take_name).feed
        elif self._key in ARGUMENT_KEYS and not self._has_arguments:
            self._has_arguments = True
            if text[start] in '"n':
                self._step = _Spelled(self).feed
            else:
                self._step = _Raw(self, self._say).feed
        else:
            self._step = _Raw(self, lambda piece, out: None).feed
        return start

    def _take_name(self, name: str, out: list[Event]) -> None:
        if not is_name(name) or (self._known is not None and name not in self._known):
            self.failed = True
            return
        self._name = name
        out.append(Event("call", name))
        if self._early:
            out.append(Event("arguments", "".join(self._early)))
        self._step = self._member

    def _say(self, piece: str, out: list[Event]) -> None:
        if self._name is None:
            self._early.append(piece)
        elif piece:
            out.append(Event("arguments", piece))

    def _fail(self, position: int) -> int:
        self.failed = True
        return position


class _Raw:
    """A value that is handed on as it is written."""

    def __init__(self, calls: JsonCalls, say: Callable[[str, list[Event]], None]):
        self._calls = calls
        self._say = say
        self._json = JsonValue()

    def feed(self, text: str, start: int, out: list[Event]) -> int:
        end = self._json.feed(text, start)
        self._say(text[start:end], out)
        if self._json.done:
            self._calls._step = self._calls._member
        return end


class _Text:
    """A short string: a key or a name."""

    def __init__(self, calls: JsonCalls, take: Callable[[str, list[Event]], None]):
        self._calls = calls
        self._take = take
        self._json = JsonValue()
        self._written = ""

    def feed(self, text: str, start: int, out: list[Event]) -> int:
        end = self._json.feed(text, start)
        room = LONGEST_NAME - len(self._written)
        if end - start > room:
            # Where a text is given up must not depend on how it was cut.
            return self._calls._fail(start + room)
        self._written += text[start:end]
        if self._json.done:
            try:
                self._take(json.loads(self._written, strict=False), out)
            except ValueError:
                self._calls.failed = True
        return end


class _Spelled:
    """Arguments that are themselves a string of JSON, or null."""

    def __init__(self, calls: JsonCalls):
        self._calls = calls
        self._json = JsonValue()
        self._written: list[str] = []

    def feed(self, text: str, start: int, out: list[Event]) -> int:
        end = self._json.feed(text, start)
        self._written.append(text[start:end])
        if self._json.done:
            self._calls._say(_decoded("".join(self._written)), out)
            self._calls._step = self._calls._member
        return end


def _decoded(written: str) -> str:
    try:
        value = json.loads(written, strict=False)
    except ValueError:
        return written
    if value is None:
        return "{}"
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else written
