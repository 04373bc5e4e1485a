"""The news of one answer as chat completions tell them: text, reasoning, and tool calls."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Iterable

from msgspec import UNSET, UnsetType

from radixserve.engine.frontend import TextDelta
from radixserve.server.dialect import Reading
from radixserve.server.wire import Delta, FunctionCall, Message, ToolCall
from radixserve.text.parsing.events import Event

Heard = Callable[[Message, list[int], TextDelta], None]

LETTERS = string.ascii_letters + string.digits


def call_id(length: int, prefix: str = "call_") -> str:
    """A new id of a call: of ``length`` letters and digits if the template wants so many, else with
    ``prefix``."""
    if length:
        return "".join(secrets.choice(LETTERS) for _ in range(length))
    return f"{prefix}{secrets.token_hex(12)}"


class ParsedAnswer:
    """One answer as it grows. What is streamed, joined, is what ``joined_message`` says.

    Args:
        heard: Told of an answer that has ended: what was said, all tokens of it, and the last news.
    """

    def __init__(self, reading: Reading, new_id: Callable[[], str], heard: Heard | None = None):
        self._reading = reading
        self._new_id = new_id
        self._parser = reading.parser()
        self._calls = 0
        self._drops = False
        """Whether the call at hand is one too many."""
        self._cut = False
        """Whether it was not the model that ended the answer."""
        self.reasoning_tokens = 0
        self._heard = heard
        self._said: list[Delta] = []
        self._tokens: list[int] = []

    def take(self, news: TextDelta) -> list[Delta]:
        """What is certain after ``news``."""
        if self._parser.reasoning:
            self.reasoning_tokens += len(news.tokens)
        events = self._parser.push(news.text)
        if news.finish is not None:
            self._cut = news.finish != "stop" or isinstance(news.stop, str)
            events += self._parser.finish(complete=not self._cut)
        said = [self._delta(event) for event in _joined(events) if not self._hidden(event)]
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

    def _delta(self, event: Event) -> Delta:
        match event.kind:
            case "content":
                return Delta(content=event.text)
            case "reasoning":
                return Delta(reasoning=event.text, reasoning_content=event.text)
            case "call":
                self._calls += 1
                function = FunctionCall(event.text)
                call = ToolCall(self._calls - 1, self._new_id(), "function", function)
                return Delta(tool_calls=[call])
            case "arguments":
                function = FunctionCall(arguments=event.text)
                return Delta(tool_calls=[ToolCall(self._calls - 1, function=function)])


def joined_message(deltas: Iterable[Delta]) -> Message:
    """The message that ``deltas`` are the pieces of."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        if delta.content is not UNSET:
            content.append(delta.content)
        if delta.reasoning is not UNSET:
            reasoning.append(delta.reasoning)
        for piece in [] if delta.tool_calls is UNSET else delta.tool_calls:
            if piece.id is not UNSET:
                function = FunctionCall(piece.function.name)
                calls.append(ToolCall(id=piece.id, type=piece.type, function=function))
                arguments.append([])
            arguments[-1].append(piece.function.arguments)
    for call, pieces in zip(calls, arguments, strict=True):
        call.function.arguments = "".join(pieces)
    thought: str | UnsetType = "".join(reasoning) if reasoning else UNSET
    return Message(
        "assistant",
        None if calls and not content else "".join(content),
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
