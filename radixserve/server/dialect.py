"""How the served model writes reasoning and tool calls, and what a request makes of that."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Self

from radixserve.server.errors import invalid, wrong
from radixserve.server.tools import ToolChoice, read_tools
from radixserve.server.wire import ChatRequest
from radixserve.text.parsing.events import Parser
from radixserve.text.parsing.formats import (
    NONE,
    ToolFormat,
    choose,
    reasoning_formats,
    tool_formats,
)
from radixserve.text.parsing.parser import Begins, Formats, schemas_of
from radixserve.text.parsing.tagged_call import Schemas
from radixserve.text.tokenizer import Tokenizer

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SWITCHES = ("enable_thinking", "thinking")
"""What templates call the switch that turns reasoning on and off."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answers to one request are read."""

    formats: Formats
    schemas: Schemas
    tools: list[dict[str, Any]]
    """What the template is told of."""
    choice: ToolChoice
    parallel: bool
    """Whether an answer may have more than one call."""
    shows_reasoning: bool
    separates_reasoning: bool
    begins: Begins = "answer"
    """What an answer begins with."""

    def parser(self) -> Parser:
        return self.formats.parser(
            self.schemas, opened=self.begins == "reasoning", separate=self.separates_reasoning
        )

    def after(self, prompt: str, messages: list[dict[str, Any]], *, continued: bool) -> Self:
        """The same, for answers to this prompt."""
        content = messages[-1].get("content") if continued else None
        text = content if isinstance(content, str) else "" if continued else None
        return replace(self, begins=self.formats.begins(prompt, text))


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the model's chat template and the operator say of the model's formats."""

    formats: Formats
    template: str
    takes_tools: bool
    passes_calls: bool
    """Calls stay in the text, since the operator wants it so."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, tool_call_parser: str, reasoning_parser: str) -> Self:
        """The dialect of the model with this tokenizer.

        Raises:
            ConfigError: there is no parser of this name.
        """
        template = tokenizer.chat_template_source
        tools = choose(tool_call_parser, tool_formats(), template, "--tool-call-parser")
        reasoning = choose(reasoning_parser, reasoning_formats(), template, "--reasoning-parser")
        return cls(
            Formats(tools, reasoning),
            template,
            tokenizer.takes_tools,
            passes_calls=tool_call_parser == NONE,
        )

    @property
    def id_length(self) -> int:
        """Characters of the ids of calls; 0 if they may have any."""
        return self.formats.tools.id_length if self.formats.tools else 0

    def reading(self, fields: ChatRequest) -> Reading:
        """How answers to a request with these fields are read.

        Raises:
            ApiError: 400, its tools cannot be, or cannot be had with this model.
        """
        tools, choice = read_tools(fields)
        calls: ToolFormat | None = None
        if choice.mode != "none":
            self._check_model(choice)
            calls = self.formats.tools
        elif not self.takes_tools:
            tools = []
        shows = fields.include_reasoning is not False
        return Reading(
            Formats(calls, self.formats.reasoning),
            schemas_of(tools),
            tools,
            choice,
            parallel=fields.parallel_tool_calls is not False,
            shows_reasoning=shows,
            separates_reasoning=fields.separate_reasoning is not False or not shows,
        )

    def _check_model(self, choice: ToolChoice) -> None:
        if not self.takes_tools:
            raise wrong(
                "tools",
                "are not supported by this model: its chat template does not mention them. "
                "Start the server with --chat-template FILE for one that does",
                "unsupported_parameter",
            )
        if self.formats.tools is None and not self.passes_calls:
            raise wrong(
                "tools",
                "are not supported: nobody knows how this model writes tool calls. Start the "
                "server with --tool-call-parser NAME, or none to get them as text",
                "unsupported_parameter",
            )
        if self.formats.tools is None and choice.constrained:
            raise invalid(
                "tool_choice",
                "tool_choice: only none and auto are supported where calls stay in the "
                "text. Start the server with --tool-call-parser NAME instead of none",
                "unsupported_value",
            )

    def template_kwargs(self, fields: ChatRequest) -> tuple[dict[str, Any], list[str]]:
        """Arguments of the template, with the effort at reasoning among them; what has no effect.

        Raises:
            ApiError: 400, there is no such effort.
        """
        given = dict(fields.chat_template_kwargs or {})
        effort = fields.reasoning_effort
        if effort is None:
            return given, []
        if effort not in EFFORTS:
            raise wrong("reasoning_effort", f"must be one of {', '.join(EFFORTS)}")
        mapped: dict[str, Any] = {}
        if self._reads("reasoning_effort"):
            style = self.formats.reasoning
            words = (style.efforts if style else None) or {}
            mapped["reasoning_effort"] = words.get(effort, effort)
        mapped |= self.switches(effort != "none")
        return {**mapped, **given}, [] if mapped else ["reasoning_effort"]

    def switches(self, on: bool) -> dict[str, Any]:
        """Arguments of the template that turn reasoning on or off; none where it has no switch."""
        return {name: on for name in SWITCHES if self._reads(name)}

    def _reads(self, name: str) -> bool:
        """Whether the template has a variable of this name."""
        return re.search(rf"(?<![\w.'\"]){name}\b", self.template) is not None
