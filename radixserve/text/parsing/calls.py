"""Tool calls among an answer's text."""

from __future__ import annotations

from collections.abc import Callable

from radixserve.text.parsing.events import Body, Event
from radixserve.text.parsing.json_value import skip_white
from radixserve.text.parsing.markers import Markers
from radixserve.text.parsing.steps import Steps

BEHIND_A_CALL = frozenset(" \t\r\n;,]}")
"""What separates calls, and the brackets that some models write once too often."""

Begin = Callable[[bool], Body]
"""Makes what reads a call; whether a marker said that there is one."""


class ToolCalls(Steps):
    """Tells calls from text. What turns out to be no call is text, markers and all.

    Args:
        opens: Markers that begin calls.
        closes: Markers that end them.
        noise: Markers around several calls, which say nothing more.
        begin: Makes what reads a call.
        bare: Whether JSON at the beginning of an answer can be a call without a marker.
        lists: Whether JSON behind a call can be another one without a marker.
    """

    def __init__(
        self,
        opens: Markers,
        closes: tuple[str, ...],
        noise: tuple[str, ...],
        begin: Begin,
        *,
        bare: bool = False,
        lists: bool = False,
    ):
        super().__init__(self._beginning if bare else self._content)
        self._opens = frozenset(opens.texts)
        self._markers = Markers([*opens.texts, *closes, *noise])
        self._closes = closes
        self._longest = max(map(len, closes), default=0)
        self._begin = begin
        self._lists = lists
        self._body: Body | None = None
        self._raw: list[str] = []
        """What was read of something that is not known to be a call yet."""
        self._refused = False
        """Whether the latest beginning of a call was text, so that its end is too."""
        self._called = False
        self._said = False
        self._white: list[str] = []
        """White space that belongs to the text if more of it comes."""

    def finish(self, *, complete: bool) -> list[Event]:
        out: list[Event] = []
        rest = self._take_rest()
        if self._body is None:
            if self._step != self._tail:
                self._say(rest, out)
        elif self._raw:
            self._say("".join(self._raw) + rest, out)
        elif complete:
            self._body.finish(out)
        if (white := "".join(self._white)) and not self._called:
            out.append(Event("content", white))
        return out

    def _beginning(self, out: list[Event]) -> bool:
        """Before the first character that is no white space."""
        start = skip_white(self._text, self._start)
        self._white.append(self._text[self._start : start])
        self._start = start
        if start == len(self._text):
            return False
        self._step = self._content
        if self._text[start] == "{":
            self._open("", marked=False)
        return True

    def _content(self, out: list[Event]) -> bool:
        found = self._markers.find(self._text, self._start)
        if found is None:
            end = self._markers.held(self._text, self._start)
            self._say(self._text[self._start : end], out)
            self._start = end
            return False
        marker = self._text[found[0] : found[1]]
        self._say(self._text[self._start : found[0]], out)
        self._start = found[1]
        if marker in self._opens:
            self._open(marker, marked=True)
        elif marker in self._closes and self._refused:
            self._say(marker, out)
            self._refused = False
        return True

    def _open(self, marker: str, *, marked: bool) -> None:
        self._body = self._begin(marked)
        self._raw = [marker]
        self._step = self._call

    def _call(self, out: list[Event]) -> bool:
        assert self._body is not None
        events: list[Event] = []
        end = self._body.feed(self._text, self._start, events)
        if self._raw:
            self._raw.append(self._text[self._start : end])
        self._start = end
        if events:
            self._raw, self._called = [], True
            out.extend(events)
        if self._body.failed:
            self._give_up(out)
            return True
        if self._body.done:
            self._body, self._step = None, self._tail
            return True
        return False

    def _give_up(self, out: list[Event]) -> None:
        assert self._body is not None
        self._refused = bool(self._raw)
        if self._refused:
            self._say("".join(self._raw), out)
        else:
            self._body.finish(out)
        self._raw, self._body, self._step = [], None, self._content

    def _tail(self, out: list[Event]) -> bool:
        """Behind a call: its end, or another call without a marker of its own."""
        while self._start < len(self._text):
            ended = self._ends_here()
            if ended is None:
                return False
            if ended:
                self._step = self._content
                return True
            if self._text[self._start] not in BEHIND_A_CALL:
                self._step = self._content
                if self._lists and self._text[self._start] == "{":
                    self._open("", marked=False)
                return True
            self._start += 1
        return False

    def _ends_here(self) -> bool | None:
        """Takes the marker of a call's end if it stands here; None if that cannot be said yet."""
        for end in self._closes:
            if self._text.startswith(end, self._start):
                self._start += len(end)
                return True
        rest = self._text[self._start : self._start + self._longest]
        begun = any(end.startswith(rest) for end in self._closes)
        return None if begun else False

    def _say(self, text: str, out: list[Event]) -> None:
        """Text of the answer, without the white space around calls."""
        body = text.rstrip()
        if not body:
            self._white.append(text)
            return
        lead = "".join(self._white)
        self._white = [text[len(body) :]]
        if self._called and not self._said:
            lead, body = "", body.lstrip()
        self._said = True
        out.append(Event("content", lead + body))
