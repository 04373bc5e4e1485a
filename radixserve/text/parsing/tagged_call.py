"""A call with a tag around each argument: ``<function=f><parameter=key>value</parameter>``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixserve.text.parsing.events import Event
from radixserve.text.parsing.markers import Markers
from radixserve.text.parsing.named_call import NameReader
from radixserve.text.parsing.names import LONGEST_NAME
from radixserve.text.parsing.steps import BodySteps

Schemas = Mapping[str, Mapping[str, Any]]
"""Of each tool by its name: the schema of its arguments."""


@dataclass(frozen=True, slots=True)
class Tags:
    """The markers of such calls."""

    name_end: Markers
    """Behind the name, the first key and the end of the call among them."""
    between: Markers
    """A key, or the end of the call."""
    key_open: frozenset[str]
    key_close: Markers
    value_open: Markers | None
    """None where the value follows the key's end at once."""
    value_close: Markers


class TaggedCall(BodySteps):
    """One call, whose arguments become JSON as they come.

    A value is of the type that the tool's schema says; a text is passed on in pieces, anything else
    once it has ended. What the schema does not tell is JSON if it can be read as such, else a text.
    """

    def __init__(self, tags: Tags, name: NameReader, schemas: Schemas):
        super().__init__(self._read_name)
        self._tags = tags
        self._name = name
        self._schemas = schemas
        self._properties: Mapping[str, Any] = {}
        self._opened = False
        self._key = ""
        self._in_text = False
        self._value: list[str] = []

    def finish(self, out: list[Event]) -> None:
        if self._name.name is None or self.done:
            return
        if self._step == self._read_value:
            self._end_value(out)
        self._close(out)

    def _read_name(self, text: str, start: int, out: list[Event]) -> int:
        end = self._name.feed(text, start)
        self.failed = self._name.failed
        if self._name.name is not None:
            out.append(Event("call", self._name.name))
            schema = self._schemas.get(self._name.name, {})
            properties = schema.get("properties")
            self._properties = properties if isinstance(properties, dict) else {}
            self._step = self._read_between
            if self._name.end in self._tags.between.texts:
                return end - len(self._name.end)
        return end

    def _read_between(self, text: str, start: int, out: list[Event]) -> int:
        found = self._tags.between.find(text, start)
        if found is None:
            return self._tags.between.held(text, start)
        if text[found[0] : found[1]] in self._tags.key_open:
            self._key, self._step = "", self._read_key
        else:
            self._close(out)
            self.done = True
        return found[1]

    def _read_key(self, text: str, start: int, out: list[Event]) -> int:
        found = self._tags.key_close.find(text, start)
        end = found[0] if found else self._tags.key_close.held(text, start)
        room = LONGEST_NAME - len(self._key)
        self._key += text[start : min(end, start + room)]
        if end - start > room:
            self.failed = True
            return start + room
        if found is None:
            return end
        if self._tags.value_open is None:
            self._begin_value(out)
        else:
            self._step = self._find_value
        return found[1]

    def _find_value(self, text: str, start: int, out: list[Event]) -> int:
        assert self._tags.value_open is not None
        found = self._tags.value_open.find(text, start)
        if found is None:
            return self._tags.value_open.held(text, start)
        self._begin_value(out)
        return found[1]

    def _begin_value(self, out: list[Event]) -> None:
        head = ", " if self._opened else "{"
        self._opened = True
        self._in_text = types_of(self._properties.get(self._key.strip())) == {"string"}
        head += json.dumps(self._key.strip(), ensure_ascii=False) + ": "
        out.append(Event("arguments", head + '"' if self._in_text else head))
        self._value = []
        self._step = self._read_value

    def _read_value(self, text: str, start: int, out: list[Event]) -> int:
        found = self._tags.value_close.find(text, start)
        end = found[0] if found else self._tags.value_close.held(text, start)
        if self._in_text and end > start:
            piece = json.dumps(text[start:end], ensure_ascii=False)[1:-1]
            out.append(Event("arguments", piece))
        elif end > start:
            self._value.append(text[start:end])
        if found is None:
            return end
        self._end_value(out)
        self._step = self._read_between
        return found[1]

    def _end_value(self, out: list[Event]) -> None:
        written = '"'
        if not self._in_text:
            types = types_of(self._properties.get(self._key.strip()))
            written = as_json("".join(self._value), types)
        out.append(Event("arguments", written))

    def _close(self, out: list[Event]) -> None:
        out.append(Event("arguments", "}" if self._opened else "{}"))


def as_json(written: str, types: set[str]) -> str:
    """``written`` as JSON of one of ``types``; of none, what it looks like; a text at worst."""
    text = written.strip()
    if "boolean" in types and text.lower() in ("true", "false"):
        return text.lower()
    if "null" in types and text.lower() in ("null", "none"):
        return "null"
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        value = written
    if isinstance(value, str) or (types and not types & _kinds_of(value)):
        return json.dumps(written, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def types_of(schema: object) -> set[str]:
    """The JSON types that ``schema`` allows at its top; none where it does not say."""
    types: set[str] = set()
    left = [schema]
    while left:
        each = left.pop()
        if not isinstance(each, dict):
            continue
        declared, values = each.get("type"), each.get("enum")
        if isinstance(declared, str | list):
            names = [declared] if isinstance(declared, str) else declared
            types.update(name for name in names if isinstance(name, str))
        elif isinstance(values, list):
            types.update(name for value in values for name in _kinds_of(value))
        for key in ("anyOf", "oneOf"):
            if isinstance(choices := each.get(key), list):
                left += choices
    return types


def _kinds_of(value: object) -> set[str]:
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case _:
            return {"object"}
