"""Items of the Responses API, checked, and as the messages that a chat template knows."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, assert_never

import msgspec

from radixserve.server.errors import ApiError, absent, invalid, invalid_json
from radixserve.server.keeping import BREAKPOINT
from radixserve.server.responses.wire import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputText,
    Item,
    ItemReference,
    MessageItem,
    OutputText,
    Part,
    ReasoningItem,
    Refusal,
)

Read = Item | ItemReference
KINDS: dict[type[msgspec.Struct], str] = {
    MessageItem: "msg",
    FunctionCallItem: "fc",
    FunctionCallOutputItem: "fco",
    ReasoningItem: "rs",
}
"""What the ids of items begin with."""
ITEM_ID = re.compile(r"[a-z]+_(?P<response>[0-9a-f]{32})[0-9a-f]+")
WITHOUT_MEANING = frozenset({"id", "status", "type", "annotations", "logprobs", "summary"})
"""Keys of items that say nothing to a model: answers have them, so they are sent back."""


def item_id(kind: type[msgspec.Struct], response: str, place: int) -> str:
    """The id of the item at ``place`` among a response's items, those of its input first."""
    return f"{KINDS[kind]}_{response.removeprefix('resp_')}{place:x}"


def response_of(item: str) -> str | None:
    """The id of the response that an item with this id, if it is one of ours, belongs to."""
    found = ITEM_ID.fullmatch(item)
    return f"resp_{found['response']}" if found else None


def read_items(given: str | list[dict[str, Any]]) -> tuple[list[Read], list[str]]:
    """The items of ``input`` without what means nothing, and the keys that were left out.

    Raises:
        ApiError: 400, an item cannot be; ``param`` is its path.
    """
    if isinstance(given, str):
        return [MessageItem("user", [InputText(given)])], []
    typed = [{"type": "message", **item} if "role" in item else item for item in given]
    try:
        items = msgspec.convert(typed, list[Read])
    except msgspec.ValidationError as error:
        raise _named(invalid_json(error, "input")) from error
    ignored: set[str] = set()
    for item, sent in zip(items, typed, strict=True):
        known = WITHOUT_MEANING.union(item.__struct_fields__)
        ignored.update(key for key, value in sent.items() if key not in known and value is not None)
    return [_plain(item) for item in items], [f"input.{key}" for key in ignored]


def _named(error: ApiError) -> ApiError:
    """``error``, which also says what could have stood there."""
    path = error.param or ""
    if not path.endswith(".type"):
        return error
    takes = "text only" if path.count(".") > 2 else f"{', '.join(_tags())} only"
    message = f"{error.message.rstrip('.')}: this server takes {takes}."
    return dataclasses.replace(error, message=message, code="unsupported_value")


def _tags() -> list[str]:
    kinds: tuple[type[msgspec.Struct], ...] = (*KINDS, ItemReference)
    return [str(kind.__struct_config__.tag) for kind in kinds]


def _plain(item: Read) -> Read:
    """The item with its content as parts, of which only the text is kept."""
    match item:
        case MessageItem(role=role, content=content):
            kind = OutputText if role == "assistant" else InputText
            parts = [kind(content)] if isinstance(content, str) else content
            return MessageItem(role, [_plain_part(part) for part in parts], status="completed")
        case FunctionCallOutputItem(call_id=call, output=output):
            return FunctionCallOutputItem(call, output, status="completed")
        case FunctionCallItem(call_id=call, name=name, arguments=arguments, status=status):
            return FunctionCallItem(call, name, arguments, status=status or "completed")
        case ReasoningItem():
            return ReasoningItem(content=item.content)
        case ItemReference():
            return item
        case _:
            assert_never(item)


def _plain_part(part: Part) -> Part:
    return OutputText(part.text) if isinstance(part, OutputText) else part


def resolved(items: Iterable[Read], known: Mapping[str, Item]) -> list[Item]:
    """``items`` with those in place of references that these refer to, by their id.

    Raises:
        ApiError: 404, there is no such item.
    """
    found: list[Item] = []
    for place, item in enumerate(items):
        if not isinstance(item, ItemReference):
            found.append(item)
            continue
        referred = known.get(item.id)
        if referred is None:
            raise absent(
                f"input.{place}.id",
                f"The item {item.id[:100]!r} is not stored here: it never was, or no more. "
                "Send the item itself",
                "item_not_found",
            )
        found.append(copy.copy(referred))
    return found


class Script:
    """The messages of a conversation, and what the client calls the parts of each.

    What one answer consists of, reasoning, text and calls, becomes one message again: so the next
    prompt begins with the last one and its answer, for every template that shows both.
    """

    def __init__(self, instructions: str | None):
        self.messages: list[dict[str, Any]] = []
        self.paths: dict[str, str] = {"messages": "input"}
        self._last: Item | None = None
        self._calls: set[str] = set()
        """The ids of all calls so far."""
        if instructions:
            self._begin("instructions", {"role": "system", "content": instructions})

    def extend(self, items: Iterable[Item], path: Callable[[int], str]) -> None:
        """Go on with ``items``; ``path`` is what the client calls one by its place.

        Raises:
            ApiError: 400, an output belongs to no call.
        """
        for place, item in enumerate(items):
            self._add(path(place), item)
            self._last = item

    def _add(self, path: str, item: Item) -> None:
        match item:
            case MessageItem(role="assistant", content=content):
                said = "".join(_text(part) for part in content)
                message = self._answer(path, new=isinstance(self._last, MessageItem))
                message["content"] = message.get("content", "") + said
            case MessageItem(role="user", content=content):
                self._begin(path, {"role": "user", **_content(content)})
            case MessageItem(content=content):
                self._instruct(path, content)
            case ReasoningItem(content=thoughts):
                message = self._answer(path)
                thought = "".join(each.text for each in thoughts or [])
                if thought:
                    message["reasoning"] = message.get("reasoning", "") + thought
            case FunctionCallItem():
                self._call(path, item)
            case FunctionCallOutputItem(call_id=call, output=output):
                if call not in self._calls:
                    fault = f"{path}.call_id: there is no call {call[:100]!r} before its output"
                    raise invalid(f"{path}.call_id", fault)
                shown = _content([output] if isinstance(output, str) else output)
                self._begin(path, {"role": "tool", "tool_call_id": call, **shown})
            case _:
                assert_never(item)

    def _begin(self, path: str, message: dict[str, Any]) -> dict[str, Any]:
        self.paths[f"messages.{len(self.messages)}"] = path
        self.messages.append(message)
        return message

    def _answer(self, path: str, *, new: bool = False) -> dict[str, Any]:
        """The assistant's message at hand."""
        if self.messages and self.messages[-1]["role"] == "assistant" and not new:
            return self.messages[-1]
        return self._begin(path, {"role": "assistant"})

    def _instruct(self, path: str, parts: Iterable[Part | str]) -> None:
        """Many templates take one message of the system, at the beginning; few know a developer.
        Whichever part of it is marked, the mark stands at its end."""
        parts = list(parts)
        text = "\n".join(_text(part) for part in parts)
        marks = [mark for part in parts if (mark := _mark(part))]
        marked = marks[-1] if marks else {}
        if len(self.messages) == 1 and self.messages[0]["role"] == "system":
            self.messages[0]["content"] += f"\n\n{text}"
            self.messages[0].update(marked)
        else:
            self._begin(path, {"role": "system", "content": text, **marked})

    def _call(self, path: str, item: FunctionCallItem) -> None:
        self._calls.add(item.call_id)
        if item.status == "incomplete" and not _is_json(item.arguments):
            return  # An answer that was cut in the middle of a call: there is nothing to show.
        message = self._answer(path)
        calls = message.setdefault("tool_calls", [])
        place = f"messages.{len(self.messages) - 1}.tool_calls.{len(calls)}"
        self.paths[place] = self.paths[f"{place}.function"] = path
        function = {"name": item.name, "arguments": item.arguments}
        calls.append({"id": item.call_id, "type": "function", "function": function})


def client_path(path: str, paths: Mapping[str, str]) -> str:
    """``path`` of a chat request by the longest of ``paths`` that it begins with."""
    head, tail = path, ""
    while head and head not in paths:
        head, _, last = head.rpartition(".")
        tail = f".{last}{tail}"
    return f"{paths[head]}{tail}" if head else path


def _text(part: Part | str) -> str:
    if isinstance(part, str):
        return part
    return part.refusal if isinstance(part, Refusal) else part.text


def _mark(part: Part | str) -> dict[str, Any]:
    """The mark on the end of ``part``, as it stands on a message or a part of it."""
    mark = part.prompt_cache_breakpoint if isinstance(part, InputText) else None
    return {} if mark is None else {BREAKPOINT: mark}


def _content(parts: Iterable[Part | str]) -> dict[str, Any]:
    """What a message says, with its marks: one text as it is, several as parts, since how they are
    joined is the template's to say."""
    said = [(_text(part), _mark(part)) for part in parts]
    if len(said) == 1:
        [(text, mark)] = said
        return {"content": text, **mark}
    return {"content": [{"type": "text", "text": text, **mark} for text, mark in said]}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
