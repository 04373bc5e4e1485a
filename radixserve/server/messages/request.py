"""A request to the Messages API as one to chat completions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from radixserve.errors import InvalidRequestError
from radixserve.server.conversation import Conversation, prepared
from radixserve.server.dialect import Dialect
from radixserve.server.endpoint import Call
from radixserve.server.errors import ApiError, invalid, required
from radixserve.server.limits import converted
from radixserve.server.messages.blocks import Chat, unknown
from radixserve.server.messages.marks import marked
from radixserve.server.messages.wire import (
    CountTokensRequest,
    MessagesRequest,
    OutputConfig,
    ToolChoiceInput,
    ToolInput,
)
from radixserve.server.wire import ChatRequest, JsonSchema, ResponseFormat

SAME = {*MessagesRequest.__struct_fields__} & {*ChatRequest.__struct_fields__} - {
    *CountTokensRequest.__struct_fields__
}
"""What both APIs call the same, beside what makes the prompt."""
OWN_NAMES = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\btools(\.\d+)?\.function\.parameters\b", r"tools\1.input_schema"),
        (r"\btools(\.\d+)?\.function\b", r"tools\1"),
        (r"\btool_choice\.function\b", "tool_choice"),
        (r"\bresponse_format\.json_schema\b", "output_config.format"),
        (r"\bresponse_format\b", "output_config.format"),
        (r"\breasoning_effort\b", "output_config.effort"),
        (r"^stop\b(?! string)", "stop_sequences"),
        (r"\bprompt_cache_breakpoint\b", "cache_control"),
    )
]
"""What the fields that a request is translated into are called in it."""


class Asked(msgspec.Struct, frozen=True):
    """What chat completions are asked in place of a request."""

    chat: ChatRequest
    ignored: list[str]
    effort: str
    """The field that the effort at reasoning comes from."""
    paths: list[str]
    """What the client calls each message of ``chat``."""

    def renamed(self, ignored: list[str]) -> list[str]:
        """Fields of ``chat`` without effect, as the request calls them."""
        return [self.effort if name == "reasoning_effort" else _renamed(name) for name in ignored]


async def understood(call: Call, fields: CountTokensRequest) -> Asked:
    """As ``asked``; what has no effect is noted."""
    found = await call.service.text_work(asked, fields, call.service.dialect)
    call.visit.ignored += found.ignored
    return found


async def conversation_of(call: Call, fields: MessagesRequest, id: str) -> Conversation:
    """The conversation of ``fields``, for the answer ``id``.

    Raises:
        ApiError, RadixServeError: what ``asked`` and ``prepared`` raise, in this API's words.
    """
    wanted = await understood(call, fields)
    with own_names():
        conversation = await prepared(call, wanted.chat, id, wanted.paths.__getitem__)
    call.visit.ignored += wanted.renamed(conversation.ignored)
    return conversation


def asked(fields: CountTokensRequest, dialect: Dialect) -> Asked:
    """What ``fields`` ask for, in the words of chat completions; O(size of the body).

    Raises:
        ApiError: 400, a field cannot be; it names it by the client's own path.
    """
    chat = Chat(fields.system, fields.messages)
    if isinstance(fields, MessagesRequest) and chat.messages:
        chat.messages[-1] = marked(chat.messages[-1], fields.cache_control, chat.ignored)
    ignored = sorted(chat.ignored)
    request = ChatRequest(
        model=fields.model,
        messages=chat.messages,
        continue_final_message=chat.continued or None,
        chat_template_kwargs=fields.chat_template_kwargs,
        tools=_tools(fields.tools or [], ignored),
        response_format=_response_format(fields.output_config),
    )
    _choose_tools(request, fields.tool_choice)
    effort = _think(request, fields, dialect, ignored)
    if isinstance(fields, MessagesRequest):
        for name in SAME:
            setattr(request, name, getattr(fields, name))
        request.stop = fields.stop_sequences
    return Asked(request, ignored, effort, chat.paths)


@contextmanager
def own_names() -> Iterator[None]:
    """Within, errors over what chat completions were asked name what the client has sent."""
    try:
        yield
    except (ApiError, InvalidRequestError) as error:
        error.message = _renamed(error.message)
        error.param = None if error.param is None else _renamed(error.param)
        raise


def _renamed(text: str) -> str:
    """``text``, which is a path or a sentence with one, in the words of this API."""
    for pattern, name in OWN_NAMES:
        text = pattern.sub(name, text)
    return text


def _tools(tools: list[dict[str, Any]], ignored: list[str]) -> list[dict[str, Any]] | None:
    functions = []
    for index, sent in enumerate(tools):
        path = f"tools.{index}"
        if sent.get("type") not in (None, "custom"):
            raise _not_ours(f"{path}.type", sent["type"])
        tool = converted(sent, ToolInput, path)
        ignored += unknown(sent, ToolInput, "tools")
        if tool.input_schema is None:
            place = f"{path}.input_schema"
            raise required(place)
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.input_schema
        if tool.strict is not None:
            function["strict"] = tool.strict
        vain: set[str] = set()
        whole = {"type": "function", "function": function}
        functions.append(marked(whole, tool.cache_control, vain))
        ignored += vain
    return functions or None


def _not_ours(path: str, kind: object) -> ApiError:
    return invalid(
        path,
        f"{path}: {str(kind)[:64]!r} is a tool that Anthropic defines, and is not there "
        "here. Leave it out, or describe one of your own by name and input_schema",
        "unsupported_value",
    )


def _choose_tools(request: ChatRequest, choice: ToolChoiceInput | None) -> None:
    if choice is None:
        return
    if choice.disable_parallel_tool_use:
        request.parallel_tool_calls = False
    match choice.type:
        case "any":
            request.tool_choice = "required"
        case "tool" if choice.name is None:
            path = "tool_choice.name"
            raise required(path)
        case "tool":
            request.tool_choice = {"type": "function", "function": {"name": choice.name}}
        case other:
            request.tool_choice = other


def _think(
    request: ChatRequest, fields: CountTokensRequest, dialect: Dialect, ignored: list[str]
) -> str:
    """Turn reasoning on or off; returns the field by which an effort is asked for."""
    thinking, config = fields.thinking, fields.output_config
    effort = config.effort if config is not None else None
    if thinking is not None:
        if thinking.budget_tokens is not None:
            ignored.append("thinking.budget_tokens")
        if thinking.type == "disabled" or thinking.display == "omitted":
            request.include_reasoning = False
        if thinking.type == "disabled":
            request.reasoning_effort = "none"
            return "thinking"
        if effort is None:
            switches = dialect.switches(True)
            request.chat_template_kwargs = {**switches, **(fields.chat_template_kwargs or {})}
            if not switches:
                ignored.append("thinking")
    request.reasoning_effort = effort
    return "output_config.effort"


def _response_format(config: OutputConfig | None) -> ResponseFormat | None:
    if config is None or config.format is None:
        return None
    schema = JsonSchema(schema=config.format.schema)
    return ResponseFormat(type="json_schema", json_schema=schema)
