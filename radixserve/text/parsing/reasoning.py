"""Reasoning in front of an answer."""

from __future__ import annotations

from collections.abc import Sequence

from radixserve.text.parsing.events import Event
from radixserve.text.parsing.markers import Markers
from radixserve.text.parsing.steps import Steps


class Reasoning(Steps):
    """Splits reasoning off an answer, without the line breaks between the two.

    Only the beginning of an answer can be reasoning, so that one may quote the markers.

    Args:
        open: The marker that begins it.
        close: The marker that ends it.
        interrupts: Markers that end it too, and belong to what follows.
        opened: The prompt has begun it already.
    """

    def __init__(self, open: str, close: str, interrupts: Sequence[str], *, opened: bool):
        super().__init__(self._beginning)
        self.reasoning = opened
        self._open = open
        self._close = close
        self._ends = Markers([close, *interrupts])
        self._white: list[str] = []
        """Line breaks that belong to the text if more of it comes; white space at the beginning."""
        self._trims = True
        """Whether line breaks that come now stand at an edge."""

    def finish(self, *, complete: bool) -> list[Event]:
        out: list[Event] = []
        rest = self._take_rest()
        if self.reasoning:
            self._reason(rest, out)
        elif lead := "".join(self._white) + rest:
            out.append(Event("content", lead))
        return out

    def _beginning(self, out: list[Event]) -> bool:
        rest = self._text[self._start :].lstrip()
        white = len(self._text) - self._start - len(rest)
        self._white.append(self._text[self._start : self._start + white])
        self._start += white
        if self._open.startswith(rest) and rest != self._open:
            return False
        if rest.startswith(self._open):
            self._start += len(self._open)
            self.reasoning = True
        if self.reasoning:
            self._white, self._step = [], self._inside
            return True
        if lead := "".join(self._white):
            out.append(Event("content", lead))
        self._white, self._step, self._trims = [], self._content, False
        return True

    def _inside(self, out: list[Event]) -> bool:
        found = self._ends.find(self._text, self._start)
        end = found[0] if found else self._ends.held(self._text, self._start)
        self._reason(self._text[self._start : end], out)
        self._start = end
        if found is None:
            return False
        if self._text.startswith(self._close, end):
            self._start += len(self._close)
        self.reasoning = False
        self._white, self._step, self._trims = [], self._content, True
        return True

    def _content(self, out: list[Event]) -> bool:
        text = self._text[self._start :]
        self._start = len(self._text)
        if self._trims:
            text = text.lstrip("\n")
            self._trims = not text
        if text:
            out.append(Event("content", text))
        return False

    def _reason(self, text: str, out: list[Event]) -> None:
        if self._trims:
            text = text.lstrip("\n")
        body = text.rstrip("\n")
        if not body:
            self._white.append(text)
            return
        self._trims = False
        lead, self._white = "".join(self._white), [text[len(body) :]]
        out.append(Event("reasoning", lead + body))
