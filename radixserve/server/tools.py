"""The tools of a request: what may be sent, and which of them may be called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from radixserve.server.wire import ChatRequest, invalid

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


def read_tools(fields: ChatRequest) -> tuple[list[dict[str, Any]], ToolChoice]:
    """The tools and the choice among them, checked.

    Raises:
        ApiError: 400, one of them cannot be; it names it by its place.
    """
    if fields.tools is None:
        if fields.tool_choice not in (None, "none", "auto"):
            raise invalid("tool_choice", "tool_choice needs tools")
        return [], ToolChoice("none")
    names = check_tools(fields.tools)
    return fields.tools, _choice(fields.tool_choice, names)


def check_tools(tools: list[dict[str, Any]]) -> set[str]:
    """The names of ``tools``.

    Raises:
        ApiError: 400, one of them cannot be.
    """
    if not tools:
        raise invalid("tools", "tools must not be empty; leave it out instead")
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"{len(tools)} tools were sent; at most {MAX_TOOLS} are taken")
    if len(msgspec.json.encode(tools)) > MAX_TOOLS_SIZE:
        raise invalid("tools", f"tools must have at most {MAX_TOOLS_SIZE} bytes of JSON together")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"tools.{index}"
        name = _check_tool(path, tool)
        if name in names:
            raise invalid(f"{path}.function.name", f"Two tools are called {name!r}")
        names.add(name)
    return names


def _check_tool(path: str, tool: dict[str, Any]) -> str:
    kind = tool.get("type")
    if kind != "function":
        message = f"{path}.type must be 'function': there are no other tools here"
        code = "missing_required_parameter" if kind is None else "invalid_value"
        raise invalid(f"{path}.type", message, code)
    function = tool.get("function")
    if not isinstance(function, dict):
        raise invalid(f"{path}.function", f"{path}.function must be an object", "invalid_type")
    path = f"{path}.function"
    name = function.get("name")
    if name is None:
        raise invalid(f"{path}.name", f"{path}.name is required", "missing_required_parameter")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        message = f"{path}.name must have 1 to 128 letters, digits, or any of _ . : -"
        raise invalid(f"{path}.name", message)
    if not isinstance(function.get("description"), str | None):
        message = f"{path}.description must be a string"
        raise invalid(f"{path}.description", message, "invalid_type")
    if not isinstance(function.get("strict"), bool | None):
        raise invalid(f"{path}.strict", f"{path}.strict must be true or false", "invalid_type")
    _check_parameters(f"{path}.parameters", function.get("parameters"))
    return name


def _check_parameters(path: str, schema: object) -> None:
    """The outside of a schema of arguments; its inside is the template's to show."""
    if schema is None:
        return
    if not isinstance(schema, dict):
        raise invalid(path, f"{path} must be an object: a JSON schema", "invalid_type")
    if schema.get("type", "object") != "object":
        message = f"{path}.type must be 'object': arguments have names"
        raise invalid(f"{path}.type", message, "invalid_json_schema")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        message = f"{path}.properties must be an object"
        raise invalid(f"{path}.properties", message, "invalid_json_schema")
    for name, each in properties.items():
        if not isinstance(each, dict | bool):
            place = f"{path}.properties.{name}"
            raise invalid(place, f"{place} must be a JSON schema", "invalid_json_schema")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        message = f"{path}.required must be a list of names"
        raise invalid(f"{path}.required", message, "invalid_json_schema")


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
    message = (
        "tool_choice must be none, auto, required, "
        '{"type": "function", "function": {"name": ...}} or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}'
    )
    raise invalid("tool_choice", message)


def _allowed(mode: object, tools: list[Any], names: set[str]) -> ToolChoice:
    path = "tool_choice.allowed_tools"
    if mode not in ("auto", "required"):
        raise invalid(f"{path}.mode", f"{path}.mode must be auto or required")
    allowed = []
    for index, tool in enumerate(tools):
        match tool:
            case {"type": "function", "function": {"name": str(name)}}:
                allowed.append(name)
            case _:
                message = f"{path}.tools.{index} must name a function"
                raise invalid(f"{path}.tools.{index}", message)
    if not allowed:
        raise invalid(f"{path}.tools", f"{path}.tools must not be empty")
    found = _known(allowed, names, f"{path}.tools")
    return ToolChoice("required" if mode == "required" else "auto", found)


def _known(wanted: list[str], names: set[str], path: str) -> frozenset[str]:
    for name in wanted:
        if name not in names:
            raise invalid(path, f"{path}: there is no tool {name[:100]!r} among tools")
    return frozenset(wanted)
