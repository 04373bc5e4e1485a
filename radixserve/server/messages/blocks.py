"""Conversations made of content blocks, as the messages that chat templates know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from radixserve.server.errors import ApiError, invalid, required, wrong
from radixserve.server.keeping import BREAKPOINT
from radixserve.server.limits import converted
from radixserve.server.messages.marks import marked
from radixserve.server.messages.wire import (
    InputMessage,
    RedactedThinkingInput,
    TextInput,
    ThinkingInput,
    ToolResultInput,
    ToolUseInput,
)
from radixserve.text.canonical import BILLING

Sent = tuple[str, dict[str, Any]]
"""A block behind its path."""

HINTS = {
    "image": "Describe what is on it in a text block",
    "document": "Send what it says in a text block",
    "search_result": "Send what was found in a text block",
}
EMPTY: dict[str, Any] = {"type": "text", "text": ""}
ERROR = "Error: "
"""Before the result of a tool that failed; templates have no other place for that."""

Kinds = Mapping[str, type[msgspec.Struct]]
TEXT: Kinds = {"text": TextInput}
KINDS: dict[str, Kinds] = {
    "system": TEXT,
    "user": {**TEXT, "tool_result": ToolResultInput},
    "assistant": {
        **TEXT,
        "tool_use": ToolUseInput,
        "thinking": ThinkingInput,
        "redacted_thinking": RedactedThinkingInput,
    },
}
"""What the blocks of each role may be."""


class Chat:
    """A conversation as chat completions have it. Neighbouring turns of one role become one.

    Raises:
        ApiError: 400, a block cannot be, or cannot be had here; ``param`` is its path.
    """

    def __init__(self, system: str | list[dict[str, Any]] | None, messages: list[InputMessage]):
        self.messages: list[dict[str, Any]] = []
        self.paths: list[str] = []
        """Where each of them was sent, or begins."""
        self.continued = False
        """Whether the last message is the beginning of the answer."""
        self.ignored: set[str] = set()
        """Fields of blocks that have no effect."""
        self._names: dict[str, str] = {}
        """Of tools, by the ids of their calls."""
        if parts := [part for part in self._system(system) if part["text"]]:
            self._add("system", _message("system", parts))
        for path, role, turn in _turns(messages):
            self.continued = role == "assistant"
            if role == "assistant":
                self._add_answer(path, turn)
            else:
                self._add_question(path, role, turn)
        if self.continued:
            self._check_beginning(len(messages) - 1)

    def _system(self, system: str | list[dict[str, Any]] | None) -> Iterator[dict[str, Any]]:
        for path, sent in _located("system", system or []):
            part = self._text(path, sent, "system")
            header = BILLING.match(part["text"])
            yield {**part, "text": part["text"][header.end() :]} if header else part

    def _add(self, path: str, message: dict[str, Any]) -> None:
        self.paths.append(path)
        self.messages.append(message)

    def _add_question(self, start: str, role: str, turn: list[Sent]) -> None:
        """A turn of the user, in which each result of a tool is a message of its own."""
        parts: list[dict[str, Any]] = []
        told = False
        for path, sent in turn:
            block = self._read(path, sent, KINDS[role], "messages.content")
            if isinstance(block, TextInput):
                parts.append(self._part(block))
            elif isinstance(block, ToolResultInput):
                if parts:
                    self._add(start, _message(role, parts))
                parts, told = [], True
                self._add(path, self._result(path, block))
        if parts or not told:
            self._add(start, _message(role, parts or [EMPTY]))

    def _result(self, path: str, block: ToolResultInput) -> dict[str, Any]:
        located = _located(f"{path}.content", block.content or [])
        parts = [self._text(place, sent, "messages.content.content") for place, sent in located]
        if block.is_error:
            parts = parts or [EMPTY]
            parts[0] = {**parts[0], "text": ERROR + parts[0]["text"]}
        message = _message("tool", parts or [EMPTY])
        message["tool_call_id"] = block.tool_use_id
        if name := self._names.get(block.tool_use_id):
            message["name"] = name
        return marked(message, block.cache_control, self.ignored)

    def _add_answer(self, start: str, turn: list[Sent]) -> None:
        """A turn of the assistant, of which the model wrote the texts without a gap."""
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        control: Any = None
        for path, sent in turn:
            match self._read(path, sent, KINDS["assistant"], "messages.content"):
                case TextInput(text=text, cache_control=mark):
                    texts.append(text)
                    control = mark or control
                case ThinkingInput(thinking=thought):
                    thoughts.append(thought)
                case ToolUseInput(id=id, name=name, input=arguments, cache_control=mark):
                    control = mark or control
                    self._names[id] = name
                    function = {"name": name, "arguments": arguments}
                    calls.append({"id": id, "type": "function", "function": function})
                case RedactedThinkingInput():
                    self.ignored.add("messages.content.redacted_thinking")
        message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
        if thoughts:
            message["reasoning"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        # Within a turn that the model wrote in one go, a mark stands for the whole of it.
        self._add(start, marked(message, control, self.ignored))

    def _check_beginning(self, index: int) -> None:
        """Only text can be continued; without any the answer begins anew."""
        last, path = self.messages[-1], f"messages.{index}.content"
        if "tool_calls" in last:
            raise wrong(path, "ends with a tool_use, which a tool_result must follow")
        if not last["content"]:
            if "reasoning" in last:
                raise wrong(path, "has only thinking: the last message must have text to continue")
            self.messages.pop()
            self.continued = False

    def _text(self, path: str, sent: dict[str, Any], where: str) -> dict[str, Any]:
        block = self._read(path, sent, TEXT, where)
        assert isinstance(block, TextInput)
        return self._part(block)

    def _part(self, block: TextInput) -> dict[str, Any]:
        return marked({"type": "text", "text": block.text}, block.cache_control, self.ignored)

    def _read(self, path: str, sent: dict[str, Any], kinds: Kinds, where: str) -> msgspec.Struct:
        kind = sent.get("type")
        type_ = kinds.get(kind) if isinstance(kind, str) else None
        if type_ is None:
            raise _refused(path, kind, kinds)
        block = converted(sent, type_, path)
        self.ignored.update(unknown(sent, type_, where))
        return block


def unknown(sent: Mapping[str, Any], type_: type[msgspec.Struct], where: str) -> Iterator[str]:
    """The fields of ``sent`` that ``type_`` does not have, with ``where`` before them."""
    for name, value in sent.items():
        if name not in type_.__struct_fields__ and value is not None:
            yield f"{where}.{name}"


def _turns(messages: list[InputMessage]) -> Iterator[tuple[str, str, list[Sent]]]:
    """The blocks of all neighbours of one role, behind the path of the first and the role."""
    begin = 0
    while begin < len(messages):
        role, turn, index = messages[begin].role, [], begin
        while index < len(messages) and messages[index].role == role:
            turn += _located(f"messages.{index}.content", messages[index].content)
            index += 1
        yield f"messages.{begin}", role, turn
        begin = index


def _located(path: str, content: str | list[dict[str, Any]]) -> list[Sent]:
    if isinstance(content, str):
        return [(path, {"type": "text", "text": content})]
    return [(f"{path}.{index}", block) for index, block in enumerate(content)]


def _message(role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A message that says ``parts``: how several are joined is the template's to know. A mark on
    the only one stands on the message."""
    if len(parts) > 1:
        return {"role": role, "content": parts}
    [part] = parts
    marks = {BREAKPOINT: part[BREAKPOINT]} if BREAKPOINT in part else {}
    return {"role": role, "content": part["text"], **marks}


def _refused(path: str, kind: object, kinds: Kinds) -> ApiError:
    param = f"{path}.type"
    if kind is None:
        return required(param)
    if not isinstance(kind, str):
        return wrong(param, "must be a string", "invalid_type")
    hint = f". {HINTS[kind]}" if kind in HINTS else ""
    message = f"{param}: {kind[:64]!r} is not taken here; it may be {', '.join(kinds)}{hint}"
    return invalid(param, message, "unsupported_value")
