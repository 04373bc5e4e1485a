"""A call as a name and a JSON object behind it, as ``name<mark>{...}``."""

from __future__ import annotations

import re

from radixserve.text.parsing.events import Event
from radixserve.text.parsing.json_value import JsonValue
from radixserve.text.parsing.markers import Markers
from radixserve.text.parsing.names import LONGEST_NAME, is_name
from radixserve.text.parsing.steps import BodySteps

OBJECT_OR_MARK = re.compile(r"[{<]")


class NameReader:
    """Reads up to the marker that ends a name; longer than a name can be, it is none.

    Args:
        ends: Markers behind a name.
        prefix: What models put in front of names, and clients do not.
        number: What stands between a name and the number of its call, if anything.
    """

    def __init__(self, ends: Markers, *, prefix: str = "", number: str = ""):
        self.name: str | None = None
        self.end = ""
        """The marker that ended the name."""
        self.failed = False
        self._ends = ends
        self._prefix = prefix
        self._number = number
        self._written = ""

    def feed(self, text: str, start: int) -> int:
        """Take text up to and with the marker."""
        found = self._ends.find(text, start)
        end = found[0] if found else self._ends.held(text, start)
        room = LONGEST_NAME - len(self._written)
        if end - start > room:
            self.failed = True
            return start + room
        self._written += text[start:end]
        if found is None:
            return end
        name = self._written.strip().removeprefix(self._prefix)
        if self._number:
            name = name.rpartition(self._number)[0] or name
        if not is_name(name):
            self.failed = True
            return end
        self.name, self.end = name, text[found[0] : found[1]]
        return found[1]


class NamedCall(BodySteps):
    """One call; its arguments are passed on as they are written."""

    def __init__(self, name: NameReader):
        super().__init__(self._read_name)
        self._name = name
        self._json: JsonValue | None = None

    def finish(self, out: list[Event]) -> None:
        if self._name.name is not None and self._json is None:
            out.append(Event("arguments", "{}"))

    def _read_name(self, text: str, start: int, out: list[Event]) -> int:
        end = self._name.feed(text, start)
        self.failed = self._name.failed
        if self._name.name is not None:
            out.append(Event("call", self._name.name))
            self._step = self._read_arguments if self._name.end == "{" else self._find_arguments
            if self._name.end == "{":
                end -= 1
                self._json = JsonValue()
        return end

    def _find_arguments(self, text: str, start: int, out: list[Event]) -> int:
        """Past whatever stands in front of the arguments: a call's id, the name of a language."""
        found = OBJECT_OR_MARK.search(text, start)
        if found is None:
            return len(text)
        if found[0] == "{":
            self._json = JsonValue()
            self._step = self._read_arguments
        else:
            out.append(Event("arguments", "{}"))
            self.done = True
        return found.start()

    def _read_arguments(self, text: str, start: int, out: list[Event]) -> int:
        assert self._json is not None
        end = self._json.feed(text, start)
        if end > start:
            out.append(Event("arguments", text[start:end]))
        self.done = self._json.done
        return end
