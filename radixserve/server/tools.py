"""The tools of a request: what may be sent, and which of them may be called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from radixserve.server.errors import ApiError, invalid, wrong
from radixserve.server.limits import converted
from radixserve.server.wire import ChatRequest

MAX_TOOLS = 128
MAX_TOOLS_SIZE = 2**20
"""Bytes of JSON of all tools together."""
NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")

Mode = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools may be called, and whether one must be."""

    mode: Mode
    names: frozenset[str] | None = None
    """None: any of the request's."""

    @property
    def must_call(self) -> bool:
        return self.mode in ("required", "named")

    @property
    def constrained(self) -> bool:
        """Whether the model must be kept to it, token by token."""
        return self.must_call or self.names is not None


class Arguments(msgspec.Struct):
    """The outside of a schema of arguments; its inside is the template's to show."""

    type: Literal["object"] = "object"
    properties: dict[str, Any] = {}
    required: list[str] = []


class Function(msgspec.Struct):
    name: str
    description: str | None = None
    strict: bool | None = None
    parameters: Arguments | None = None


class Tool(msgspec.Struct):
    type: Literal["function"]
    function: Function


def read_tools(fields: ChatRequest) -> tuple[list[dict[str, Any]], ToolChoice]:
    """The tools and the choice among them, checked.

    Raises:
        ApiError: 400, one of them cannot be; it names it by its place.
    """
    if fields.tools is None:
        if fields.tool_choice not in (None, "none", "auto"):
            raise wrong("tool_choice", "needs tools")
        return [], ToolChoice("none")
    names = check_tools(fields.tools)
    return fields.tools, _choice(fields.tool_choice, names)


def check_tools(tools: list[dict[str, Any]]) -> set[str]:
    """The names of ``tools``.

    Raises:
        ApiError: 400, one of them cannot be.
    """
    if not tools:
        raise wrong("tools", "must not be empty; leave it out instead")
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"{len(tools)} tools were sent; at most {MAX_TOOLS} are taken")
    if len(msgspec.json.encode(tools)) > MAX_TOOLS_SIZE:
        raise wrong("tools", f"must have at most {MAX_TOOLS_SIZE} bytes of JSON together")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"tools.{index}"
        name = _check_tool(path, tool)
        if name in names:
            raise invalid(f"{path}.function.name", f"Two tools are called {name!r}")
        names.add(name)
    return names


def _check_tool(path: str, tool: dict[str, Any]) -> str:
    kind = tool.get("type", "function")
    if kind != "function":
        message = f"{path}.type must be 'function': there are no other tools here"
        raise invalid(f"{path}.type", message)
    try:
        function = converted(tool, Tool, path).function
        _check_properties(f"{path}.function.parameters.properties", function)
    except ApiError as error:
        if f"{path}.function.parameters." in (error.param or ""):
            error.code = "invalid_json_schema"
        raise
    if not NAME.fullmatch(function.name):
        raise wrong(
            f"{path}.function.name", "must have 1 to 128 letters, digits, or any of _ . : -"
        )
    return function.name


def _check_properties(path: str, function: Function) -> None:
    """Here and not in ``Arguments``, whose errors would not say which of them it is."""
    for name, schema in function.parameters.properties.items() if function.parameters else ():
        if not isinstance(schema, dict | bool):
            raise wrong(f"{path}.{name}", "must be a schema, which is an object or a boolean")


def _choice(choice: str | dict[str, Any] | None, names: set[str]) -> ToolChoice:
    match choice:
        case None | "auto":
            return ToolChoice("auto")
        case "none":
            return ToolChoice("none")
        case "required":
            return ToolChoice("required")
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice("named", _known([name], names, "tool_choice.function.name"))
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}:
            return _allowed(mode, tools, names)
    raise wrong(
        "tool_choice",
        'must be none, auto, required, {"type": "function", "function": {"name": ...}} '
        'or {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}',
    )


def _allowed(mode: object, tools: list[Any], names: set[str]) -> ToolChoice:
    path = "tool_choice.allowed_tools"
    if mode not in ("auto", "required"):
        raise wrong(f"{path}.mode", "must be auto or required")
    allowed = []
    for index, tool in enumerate(tools):
        match tool:
            case {"type": "function", "function": {"name": str(name)}}:
                allowed.append(name)
            case _:
                raise wrong(f"{path}.tools.{index}", "must name a function")
    if not allowed:
        raise wrong(f"{path}.tools", "must not be empty")
    found = _known(allowed, names, f"{path}.tools")
    return ToolChoice("required" if mode == "required" else "auto", found)


def _known(wanted: list[str], names: set[str], path: str) -> frozenset[str]:
    for name in wanted:
        if name not in names:
            raise invalid(path, f"{path}: there is no tool {name[:100]!r} among tools")
    return frozenset(wanted)
