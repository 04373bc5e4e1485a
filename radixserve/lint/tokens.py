"""The tokens of a request's prompt: those of a model, or about as many."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from radixserve.errors import InvalidRequestError
from radixserve.explain.walk import UNSEEN
from radixserve.lint.logs import Request
from radixserve.lint.parts import Body
from radixserve.text.tokenizer import Tokenizer

BYTES = 4
"""Of UTF-8, that count as a token where no tokenizer is at hand."""


class Tokens(Protocol):
    """How prompts become tokens."""

    told: str
    """What a report says of it."""

    def of(self, request: Request) -> Sequence[int]:
        """The tokens of its prompt.

        Raises:
            ValueError: it has none; the message says why.
        """


class About:
    """Every four bytes of UTF-8 are a token, about what tokenizers make of English."""

    told = f"an estimate: {BYTES} bytes of UTF-8 a token"

    def of(self, request: Request) -> Sequence[int]:
        """O(size). Each part begins with a token of its own."""
        texts = (part.text.encode(errors="replace") for part in request.parts)
        packed = b"".join(text.ljust(-(-len(text) // BYTES) * BYTES, b"\0") for text in texts)
        return array("q", np.frombuffer(packed, "<i4").astype(np.int64).tobytes())


class Exact:
    """What the model's own template and tokenizer make of a request, as the server asks them."""

    def __init__(self, tokenizer: Tokenizer, name: str):
        self.told = f"those of {name}"
        self._tokenizer = tokenizer

    def of(self, request: Request) -> Sequence[int]:
        body = request.body
        try:
            if isinstance(body.get("prompt"), str):
                packed = self._tokenizer.encode(body["prompt"])
            else:
                messages, tools = chat_of(body)
                settings = body.get("chat_template_kwargs")
                packed = self._tokenizer.encode_chat(
                    messages,
                    tools=tools or None,
                    template_kwargs=settings if isinstance(settings, dict) else None,
                )
        except InvalidRequestError as error:
            raise ValueError(str(error)) from error
        return array("q", np.frombuffer(packed, ">i4").astype(np.int64).tobytes())


def chat_of(body: Body) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages and tools of a request to chat completions or to Anthropic's API, as templates
    know them.

    Raises:
        ValueError: it is another one, or would be refused.
    """
    if not isinstance(body.get("messages"), list):
        raise ValueError("only requests with messages or a text as prompt can be rendered")
    tools = body.get("tools") or []
    if not _is_anthropic(body, tools):
        return _unmarked(body["messages"]), _unmarked(tools)
    # Slow to import, and rarely needed.
    from radixserve.server.errors import ApiError
    from radixserve.server.messages.blocks import Chat
    from radixserve.server.messages.wire import InputMessage

    try:
        messages = msgspec.convert(body["messages"], list[InputMessage])
        system = msgspec.convert(body.get("system"), str | list[dict[str, Any]] | None)
        chat = Chat(system, messages)
    except ApiError as error:
        raise ValueError(error.message) from error
    return chat.messages, [_function(tool) for tool in tools]


def _unmarked(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without marks for caches, which servers take out of what they render."""
    return [{name: each[name] for name in each if name not in UNSEEN} for each in values]


def _is_anthropic(body: Body, tools: list[Any]) -> bool:
    if "system" in body or any("input_schema" in tool for tool in tools):
        return True
    return any(
        part.get("type") in ("tool_use", "tool_result", "thinking")
        for message in body["messages"]
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if isinstance(part, dict)
    )


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    function = {name: tool[name] for name in ("name", "description") if name in tool}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}
