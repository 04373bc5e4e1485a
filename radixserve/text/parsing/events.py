"""What an answer's text turns out to be, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["content", "reasoning", "call", "arguments"]


@dataclass(frozen=True, slots=True)
class Event:
    """A piece of an answer.

    ``call`` begins a tool call and has the tool's name as its text; ``arguments`` is the next piece
    of the JSON text of the latest call's arguments.
    """

    kind: Kind
    text: str


class Parser(Protocol):
    """Tells an answer's text apart as it comes.

    However the text is cut into pieces, the events say the same: joined by kind and call, their
    texts are equal. Time is linear in the text; what is held back is at most a marker, a name,
    white space, and arguments whose tool is not known yet.
    """

    @property
    def reasoning(self) -> bool:
        """Whether the text at hand is reasoning."""

    def push(self, text: str) -> list[Event]:
        """Take the next piece of the text; returns what is certain now."""

    def finish(self, *, complete: bool) -> list[Event]:
        """Take the end of the text.

        Args:
            complete: The model ended the answer itself; otherwise it was cut.
        """


class Body(Protocol):
    """Reads what stands between the markers of tool calls."""

    @property
    def done(self) -> bool:
        """Whether the last call has ended."""

    @property
    def failed(self) -> bool:
        """Whether what was read since the last event is no call."""

    def feed(self, text: str, start: int, out: list[Event]) -> int:
        """Read ``text`` from ``start`` on; returns the position up to which it was taken."""

    def finish(self, out: list[Event]) -> None:
        """The model ended its answer here: complete the arguments of the open call."""
