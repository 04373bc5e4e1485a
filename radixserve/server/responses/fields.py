"""The fields of a request for a response, as those of a chat request."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from radixserve.server.errors import wrong
from radixserve.server.responses.wire import ResponsesRequest, TextFormat
from radixserve.server.wire import ChatRequest, CommonFields, JsonSchema, ResponseFormat

SAME = (
    *CommonFields.__struct_fields__,
    "chat_template_kwargs",
    "keep_reasoning",
    "parallel_tool_calls",
)
"""Fields that chat requests have too."""
LOGPROBS = "message.output_text.logprobs"
OFFERED = frozenset(
    {
        "custom",
        "image_generation",
        "local_shell",
        "namespace",
        "tool_search",
        "web_search",
        "web_search_preview",
    }
)
"""Tools that coding agents offer with every request, and can do without: the model is not told."""
TOOL_KEYS = ("name", "description", "parameters", "strict")
PATHS = {
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "tool_choice.function": "tool_choice",
    "tool_choice.allowed_tools": "tool_choice",
}
"""What chat requests call a field, and what it is called here."""


class Asked:
    """A request for a response as a chat request.

    Raises:
        ApiError: 400, a field cannot be.
    """

    def __init__(self, fields: ResponsesRequest, messages: list[dict[str, Any]]):
        self.ignored: list[str] = []
        """Fields that have no effect."""
        self.paths: dict[str, str] = dict(PATHS)
        self.logprobs = self._logprobs(fields)
        self.tools = self._tools(fields.tools or [])
        """Those that the model is told of, as a response repeats them."""
        functions = [{"type": "function", "function": _function(tool)} for tool in self.tools]
        self.chat = ChatRequest(
            messages=messages,
            max_completion_tokens=fields.max_output_tokens,
            logprobs=self.logprobs,
            top_logprobs=fields.top_logprobs,
            tools=functions or None,
            tool_choice=_choice(fields.tool_choice),
            reasoning_effort=self._effort(fields.reasoning or {}),
            response_format=self._format(fields),
            **{name: getattr(fields, name) for name in SAME},
        )

    def _logprobs(self, fields: ResponsesRequest) -> bool:
        include = fields.include or []
        self.ignored += [f"include.{name}" for name in include if name != LOGPROBS]
        return LOGPROBS in include or bool(fields.top_logprobs)

    def _tools(self, sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
        tools: list[dict[str, Any]] = []
        for place, tool in enumerate(sent):
            kind = tool.get("type")
            if isinstance(kind, str) and kind in OFFERED:
                self.ignored.append(f"tools.{kind}")
                continue
            if kind != "function":
                code = "missing_required_parameter" if kind is None else "unsupported_value"
                raise wrong(
                    f"tools.{place}.type",
                    "must be 'function': this server runs no tools itself",
                    code,
                )
            for path in (f"tools.{len(tools)}", f"tools.{len(tools)}.function"):
                self.paths[path] = f"tools.{place}"
            self.ignored += [
                f"tools.{key}"
                for key, value in tool.items()
                if value is not None and key not in ("type", *TOOL_KEYS)
            ]
            tools.append({key: tool.get(key) for key in ("type", *TOOL_KEYS)})
        return tools

    def _effort(self, reasoning: dict[str, Any]) -> str | None:
        effort = reasoning.get("effort")
        if not isinstance(effort, str | None):
            raise wrong("reasoning.effort", "must be a string", "invalid_type")
        self.ignored += [
            f"reasoning.{name}"
            for name, value in reasoning.items()
            if value is not None and name != "effort"
        ]
        return effort

    def _format(self, fields: ResponsesRequest) -> ResponseFormat | None:
        if fields.text is None:
            return None
        if fields.text.verbosity is not None:
            self.ignored.append("text.verbosity")
        wanted = fields.text.format
        if wanted is None:
            return None
        schema = None
        if wanted.type == "json_schema":
            schema = JsonSchema(name=wanted.name, schema=wanted.schema, strict=wanted.strict)
        return ResponseFormat(type=wanted.type, json_schema=schema)


def shown_format(wanted: TextFormat | None) -> dict[str, Any]:
    """``text.format`` as a response repeats it."""
    if wanted is None or wanted.type != "json_schema":
        return {"type": "text" if wanted is None else wanted.type}
    return {
        "type": wanted.type,
        "name": wanted.name,
        "description": wanted.description,
        "schema": None if wanted.schema is UNSET else wanted.schema,
        "strict": bool(wanted.strict),
    }


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """``tool_choice`` in the words of chat requests.

    Raises:
        ApiError: 400, it is none.
    """
    match choice:
        case None | "none" | "auto" | "required":
            return choice
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "tools": list(tools), **rest}:
            named = [_choice(tool) if isinstance(tool, dict) else tool for tool in tools]
            allowed = {"mode": rest.get("mode", "auto"), "tools": named}
            return {"type": "allowed_tools", "allowed_tools": allowed}
    raise wrong(
        "tool_choice",
        'must be none, auto, required, {"type": "function", "name": ...} or '
        '{"type": "allowed_tools", "mode": ..., "tools": [...]}',
    )


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    return {key: tool[key] for key in TOOL_KEYS if tool[key] is not None}
