"""The news of one answer as they are told: pieces of text, of reasoning, and of tool calls."""

from __future__ import annotations

import secrets
import string
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import UNSET

from radixserve.engine.frontend import TextDelta
from radixserve.server.dialect import Reading
from radixserve.server.tally import Tally
from radixserve.server.wire import FunctionCall, Message, ToolCall
from radixserve.text.parsing.events import Event, Kind

Heard = Callable[[Message, list[int], TextDelta], None]

LETTERS = string.ascii_letters + string.digits


def call_id(length: int, prefix: str = "call_") -> str:
    """A new id of a call: of ``length`` letters and digits if the template wants so many, else with
    ``prefix``."""
    if length:
        return "".join(secrets.choice(LETTERS) for _ in range(length))
    return f"{prefix}{secrets.token_hex(12)}"


class Piece(NamedTuple):
    """What an answer says next; ``kind`` and ``text`` are as in ``Event``."""

    kind: Kind
    text: str
    call: int = 0
    """The place of the call that begins or goes on."""
    id: str = ""
    """Of a call that begins."""


class ParsedAnswer:
    """One answer as it grows. What is told, joined, is what ``joined_message`` says.

    Args:
        heard: Told of an answer that has ended: what was said, all tokens of it, and the last news.
    """

    def __init__(
        self,
        reading: Reading,
        tally: Tally,
        new_id: Callable[[], str],
        heard: Heard | None = None,
    ):
        self._reading = reading
        self._tally = tally
        self._new_id = new_id
        self._parser = reading.parser()
        self._calls = 0
        self._drops = False
        """Whether the call at hand is one too many."""
        self._cut = False
        """Whether it was not the model that ended the answer."""
        self._heard = heard
        self._said: list[Piece] = []
        self._tokens: list[int] = []

    def take(self, news: TextDelta) -> list[Piece]:
        """What is certain after ``news``."""
        if self._parser.reasoning:
            self._tally.reasoning += len(news.tokens)
        events = self._parser.push(news.text)
        if news.finish is not None:
            self._cut = news.finish != "stop" or isinstance(news.stop, str)
            events += self._parser.finish(complete=not self._cut)
        said = [self._piece(event) for event in _joined(events) if not self._hidden(event)]
        if self._heard is not None:
            self._said += said
            self._tokens += news.tokens
            if news.finish is not None:
                self._heard(joined_message(self._said), self._tokens, news)
        return said

    def finish_reason(self, finish: str) -> str:
        """Why the answer ended, in OpenAI's words: the call of a tool that was named is a stop, and
        so is a stop string, wherever it stands."""
        named = self._reading.choice.mode == "named"
        return "tool_calls" if self._calls and not (self._cut or named) else finish

    def _hidden(self, event: Event) -> bool:
        if event.kind == "reasoning":
            return not self._reading.shows_reasoning
        if event.kind == "call":
            self._drops = bool(self._calls) and not self._reading.parallel
        return self._drops and event.kind in ("call", "arguments")

    def _piece(self, event: Event) -> Piece:
        if event.kind == "call":
            self._calls += 1
            return Piece("call", event.text, self._calls - 1, self._new_id())
        place = self._calls - 1 if event.kind == "arguments" else 0
        return Piece(event.kind, event.text, place)


def joined_message(pieces: Sequence[Piece]) -> Message:
    """The message that ``pieces`` are those of."""
    parts: defaultdict[tuple[Kind, int], list[str]] = defaultdict(list)
    for piece in pieces:
        parts[piece.kind, piece.call].append(piece.text)
    texts = {place: "".join(each) for place, each in parts.items()}
    calls = [
        ToolCall(
            id=piece.id,
            type="function",
            function=FunctionCall(piece.text, texts.get(("arguments", piece.call), "")),
        )
        for piece in pieces
        if piece.kind == "call"
    ]
    thought = texts.get(("reasoning", 0), UNSET)
    return Message(
        "assistant",
        texts.get(("content", 0), None if calls else ""),
        reasoning=thought,
        reasoning_content=thought,
        tool_calls=calls or UNSET,
    )


def _joined(events: list[Event]) -> list[Event]:
    """Neighbours of the same kind as one, as long as they belong to the same call."""
    joined: list[Event] = []
    for event in events:
        if joined and event.kind == joined[-1].kind != "call":
            joined[-1] = Event(event.kind, joined[-1].text + event.text)
        else:
            joined.append(event)
    return joined
