"""Answers in channels, as gpt-oss writes them.

Source: OpenAI's harmony response format, https://github.com/openai/harmony.
"""

from __future__ import annotations

import re

from radixserve.text.parsing.events import Event, Kind
from radixserve.text.parsing.markers import Markers
from radixserve.text.parsing.names import is_name
from radixserve.text.parsing.steps import Steps

LONGEST_HEADER = 512
"""Characters; what is longer is no header but text."""

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
MARKERS = (START, CHANNEL, MESSAGE, "<|constrain|>", *ENDS)

RECIPIENT = re.compile(r"\bto=(?:functions\.)?(?P<name>[^\s<]+)")
CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(?P<name>\w+)")


class Channels(Steps):
    """Analysis is reasoning; what is addressed to a tool is a call; all the rest is the answer.

    Args:
        calls: Whether there are tools that can be called.
        separate: Whether analysis is told apart from the answer.
    """

    def __init__(self, *, calls: bool, separate: bool):
        super().__init__(self._body)
        self._calls = calls
        self._separates = separate
        self._begin = Markers([START, CHANNEL, *ENDS])
        self._message = Markers([MESSAGE])
        self._kind: Kind = "content"
        self._header = ""
        self._empty = False
        """Whether the call at hand has no arguments yet."""
        self._begun: set[Kind] = set()
        self._separate = False
        """Whether the next text follows another message of its kind."""

    def finish(self, *, complete: bool) -> list[Event]:
        out: list[Event] = []
        if self._step == self._body:
            if complete or self._kind != "arguments":
                self._say(self._text[self._start :], out)
            if complete:
                self._end(out)
        return out

    def _body(self, out: list[Event]) -> bool:
        found = self._begin.find(self._text, self._start)
        end = found[0] if found else self._begin.held(self._text, self._start)
        self._say(self._text[self._start : end], out)
        if found is None:
            self._start = end
            return False
        self._end(out)
        marker = self._text[found[0] : found[1]]
        self._start = found[1]
        if marker in (START, CHANNEL):
            self._header, self._step = marker, self._read_header
        return True

    def _read_header(self, out: list[Event]) -> bool:
        found = self._message.find(self._text, self._start)
        end = found[0] if found else self._message.held(self._text, self._start)
        room = LONGEST_HEADER - len(self._header)
        self._header += self._text[self._start : min(end, self._start + room)]
        if end - self._start > room:
            self._start += room
            self._say(self._header, out)
            self._step = self._body
            return True
        self._start = end
        if found is None:
            return False
        self._start = found[1]
        self._step = self._body
        self._address(out)
        return True

    def _address(self, out: list[Event]) -> None:
        """What the message is whose header was read."""
        recipient = RECIPIENT.search(self._header)
        channel = CHANNEL_NAME.search(self._header)
        self.reasoning = False
        if recipient and self._calls and is_name(recipient["name"]):
            self._kind, self._empty = "arguments", True
            out.append(Event("call", recipient["name"]))
            return
        analysis = channel is not None and channel["name"] == "analysis"
        self.reasoning = analysis and self._separates
        self._kind = "reasoning" if self.reasoning else "content"
        self._separate = self._kind in self._begun

    def _say(self, text: str, out: list[Event]) -> None:
        if not text:
            return
        if self._separate:
            text, self._separate = "\n" + text, False
        self._begun.add(self._kind)
        self._empty = False
        out.append(Event(self._kind, text))

    def _end(self, out: list[Event]) -> None:
        """The message ends; a call without arguments has none."""
        if self._kind == "arguments" and self._empty:
            out.append(Event("arguments", "{}"))
        self._kind, self._empty, self.reasoning, self._separate = "content", False, False, False
