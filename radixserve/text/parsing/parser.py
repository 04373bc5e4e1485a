"""The parser of one answer, put together from the formats of its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from radixserve.text.parsing.calls import ToolCalls
from radixserve.text.parsing.channels import MARKERS as CHANNEL_MARKERS
from radixserve.text.parsing.channels import Channels
from radixserve.text.parsing.events import Body, Event, Parser
from radixserve.text.parsing.formats import ReasoningFormat, ToolFormat
from radixserve.text.parsing.json_calls import JsonCalls
from radixserve.text.parsing.markers import Markers
from radixserve.text.parsing.named_call import NamedCall, NameReader
from radixserve.text.parsing.reasoning import Reasoning
from radixserve.text.parsing.tagged_call import Schemas, TaggedCall, Tags

Begins = Literal["reasoning", "either", "answer"]
"""What the model goes on with behind a prompt: reasoning that it has begun; reasoning or none, as
it likes; no reasoning."""


@dataclass(frozen=True, slots=True)
class Formats:
    """What an answer's text is read as; None leaves that part of it in the text."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that a parser must see, even where they are special tokens."""
        found: list[str] = []
        for each in (self.tools, self.reasoning):
            if each is not None:
                found += CHANNEL_MARKERS if each.form == "channels" else each.markers
        return tuple(dict.fromkeys(found))

    @property
    def channels(self) -> bool:
        return any(each and each.form == "channels" for each in (self.tools, self.reasoning))

    def begins(self, prompt: str, continued: str | None) -> Begins:
        """What an answer to ``prompt`` begins with.

        Args:
            continued: The beginning of the answer that the client sent with the prompt, if any.
        """
        style = self.reasoning
        if self.channels:
            return "either" if continued is None else "answer"
        if style is None:
            return "answer"
        if continued is not None:
            inside = continued.rfind(style.open) > continued.rfind(style.close)
            return "reasoning" if inside else "answer"
        end = prompt.rstrip()
        if style.implied or end.endswith(style.open):
            return "reasoning"
        return "answer" if end.endswith(style.close) else "either"

    def parser(self, schemas: Schemas, *, opened: bool = False, separate: bool = True) -> Parser:
        """What reads one answer.

        Args:
            schemas: The schema of the arguments of each tool that can be called.
            opened: The answer begins inside of reasoning.
            separate: Whether reasoning is told apart; otherwise it is text, marked as it is.
        """
        tools, reasoning = self.tools, self.reasoning
        if self.channels:
            separate = separate and reasoning is not None
            return Channels(calls=tools is not None, separate=separate)
        stages: list[Parser] = []
        if reasoning is not None and separate:
            interrupts = reasoning.interrupts if tools is not None else ()
            stages.append(Reasoning(reasoning.open, reasoning.close, interrupts, opened=opened))
        if tools is not None:
            stages.append(tool_calls(tools, schemas))
        return Pipeline(stages)


class Pipeline:
    """Stages of which each reads what is text to the one before."""

    def __init__(self, stages: list[Parser]):
        self._stages = stages

    @property
    def reasoning(self) -> bool:
        return any(stage.reasoning for stage in self._stages)

    def push(self, text: str) -> list[Event]:
        return self._through([Event("content", text)] if text else [], 0)

    def finish(self, *, complete: bool) -> list[Event]:
        events: list[Event] = []
        for place, stage in enumerate(self._stages):
            events += self._through(stage.finish(complete=complete), place + 1)
        return events

    def _through(self, events: list[Event], first: int) -> list[Event]:
        for stage in self._stages[first:]:
            events = [
                news
                for event in events
                for news in (stage.push(event.text) if event.kind == "content" else [event])
            ]
        return events


def tool_calls(style: ToolFormat, schemas: Schemas) -> ToolCalls:
    """The parser of ``style``, to which ``schemas`` tell the types of arguments."""

    def begin(marked: bool) -> Body:
        if style.form == "named":
            return NamedCall(_name(style))
        if style.form == "tagged":
            return TaggedCall(_tags(style), _name(style), schemas)
        calls = JsonCalls(None if marked else schemas)
        return Either(calls, NamedCall(_name(style))) if style.form == "mixed" and marked else calls

    return ToolCalls(
        _markers(style.open),
        style.close,
        style.noise,
        begin,
        bare=style.bare,
        lists=style.form in ("json", "mixed"),
    )


class Either:
    """A call, or a list of them, in the form that its first character tells."""

    def __init__(self, json: Body, named: Body):
        self._bodies: Mapping[bool, Body] = {True: json, False: named}
        self._body: Body | None = None

    @property
    def done(self) -> bool:
        return self._body is not None and self._body.done

    @property
    def failed(self) -> bool:
        return self._body is not None and self._body.failed

    def feed(self, text: str, start: int, out: list[Event]) -> int:
        while start < len(text) and self._body is None:
            if text[start].isspace():
                start += 1
            else:
                self._body = self._bodies[text[start] in "[{"]
        return start if self._body is None else self._body.feed(text, start, out)

    def finish(self, out: list[Event]) -> None:
        if self._body is not None:
            self._body.finish(out)


def _name(style: ToolFormat) -> NameReader:
    behind = (*style.name_end, *style.key_open, *style.close)
    ends = behind if style.form == "tagged" else (*style.name_end, "{")
    return NameReader(_markers(ends), prefix=style.name_prefix, number=style.name_number)


@lru_cache(maxsize=64)
def _tags(style: ToolFormat) -> Tags:
    return Tags(
        name_end=_markers(style.name_end),
        between=_markers((*style.key_open, *style.close)),
        key_open=frozenset(style.key_open),
        key_close=_markers(style.key_close),
        value_open=_markers(style.value_open) if style.value_open else None,
        value_close=_markers(style.value_close),
    )


@lru_cache(maxsize=256)
def _markers(texts: tuple[str, ...]) -> Markers:
    return Markers(texts)


def schemas_of(tools: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The schemas of the arguments of ``tools``, which are in OpenAI's form, by their names."""
    functions = [tool["function"] for tool in tools]
    return {each["name"]: each.get("parameters") or {} for each in functions}
