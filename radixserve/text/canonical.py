"""Opt-in canonical forms: prompts that say the same get the same text, so that a cache finds them.

Every form changes what the model reads, if only its order, so that none is on unless the operator
turns it on, and each that changed something is told to the client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from radixserve.errors import ConfigError

Name = Literal["tools", "json", "volatile"]
Message = dict[str, Any]
Own = Callable[[Message], Message | None]
"""A message as the model wrote it, if that is known."""

BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n*")
"""What some clients put before all else, with a number that is another one in every request: left
in, no prompt would begin as the one before."""
_DATED = r"(?=[^\n]*?(?:\d{1,2}:\d\d|\b(?:19|20)\d\d\b|\d{1,2}[./]\d{1,2}[./]\d{2,4}))"
_NAMES = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun)"
_ZONES = r"(?:utc|gmt|ces?t|ees?t|[bijw][es]?t|[cemp][sd]t|[a-z]{3,12}/[a-z_]{3,24})"
_TIME = (
    rf"(?:[\d ,.:+/()-]|\b{_NAMES}[a-z]{{0,6}}\b|\b(?:at|of|the|am|pm|{_ZONES})\b"
    r"|(?<=\d)(?:st|nd|rd|th|am|pm|t|z)(?![a-z])){1,100}"
)
"""A date, a time of day, or both, and nothing else."""
_WHAT = r"(?:date(?: (?:and|&) time)?|time|date ?time|timestamp)"
VOLATILE = re.compile(
    r"^[ \t]*(?:[-*•] )?(?:"
    r"x-anthropic-billing-header:[^\n]*"
    rf"|(?:the )?(?:current|present|today['’]s) {_WHAT}(?: \([^()\n]{{1,30}}\))?(?: is:?|:|=)"
    rf"{_DATED}{_TIME}"
    rf"|(?:today(?: is:?|:)|now:|timestamp:|{_WHAT}:){_DATED}{_TIME}"
    r"|(?:request|trace|session|conversation|correlation)[ _-]?id: ?[0-9a-f-]{8,64}[ \t]*"
    r")(?:\n|\Z)",
    re.IGNORECASE | re.MULTILINE,
)
"""Whole lines that are another one in every request or every minute: the time with a date or an
hour behind it, the id of a request, a client's billing header."""
FIELDS = ("type", "function", "name", "description", "parameters", "strict")
"""Of tools, in the order in which most write them."""
ROLES = ("system", "developer")
"""Whose messages may hold such lines; what a user or a tool says is never touched."""


@dataclass(frozen=True, slots=True)
class Canonical:
    """The forms that are on."""

    forms: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: str) -> Self:
        """The forms ``names`` lists, with commas between them; none if it is empty.

        Raises:
            ConfigError: there is no such form, or none where a comma says so.
        """
        wanted = [name.strip() for name in names.split(",")] if names.strip() else []
        if not all(wanted):
            raise ConfigError(
                f"--canonical: {names[:80]!r} lists a form without a name: leave out the comma."
            )
        known = get_args(Name)
        if unknown := [name for name in wanted if name not in known]:
            raise ConfigError(
                f"--canonical: there is no form {unknown[0][:40]!r}; there are {', '.join(known)}."
            )
        return cls(frozenset(wanted))

    def applied(
        self, messages: list[Message], tools: list[dict[str, Any]], own: Own = lambda _: None
    ) -> tuple[list[Message], list[dict[str, Any]], list[str]]:
        """The messages and tools for the template, and the forms that changed something in them.

        ``tools`` have been checked: each is a function with a name. A call that the model wrote
        has the form that it has in the cache, which ``own`` knows, rather than an order of keys.
        Nothing that was given is changed in place. O(their size), O(1) if no form is on.
        """
        changed: list[str] = []
        if "tools" in self.forms:
            ordered = sorted(tools, key=lambda tool: str(tool["function"]["name"]))
            if any(one is not other for one, other in zip(ordered, tools, strict=True)):
                tools = ordered
                changed.append("tools")
        if "json" in self.forms:
            keyed = [_ordered_tool(each) for each in tools]
            called = [own(each) or _with_ordered_calls(each) for each in messages]
            if _differ(keyed, tools) or _differ(called, messages):
                tools, messages = keyed, called
                changed.append("json")
        if "volatile" in self.forms:
            stripped = [_without_volatile(each) for each in messages]
            if _differ(stripped, messages):
                messages = stripped
                changed.append("volatile")
        return messages, tools, changed


def _differ(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether any is not the very object it was."""
    return any(one is not other for one, other in zip(some, others, strict=True))


def _ordered(value: Any) -> Any:
    """``value`` with the keys of all objects in alphabetical order; itself if they are, or if it is
    nested too deeply to tell."""
    try:
        text = json.dumps(value, sort_keys=True)
        return value if text == json.dumps(value) else json.loads(text)
    except (ValueError, RecursionError):
        return value


def _ordered_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool's own fields as models were trained on them, and all inside in alphabetical order."""
    function = {name: _ordered(value) for name, value in tool["function"].items()}
    ordered = _listed({**{n: _ordered(v) for n, v in tool.items()}, "function": _listed(function)})
    try:
        return tool if json.dumps(ordered) == json.dumps(tool) else ordered
    except (ValueError, RecursionError):
        return tool


def _listed(fields: dict[str, Any]) -> dict[str, Any]:
    """``FIELDS`` first, others behind them by their names."""
    known = [name for name in FIELDS if name in fields]
    return {name: fields[name] for name in (*known, *sorted(fields.keys() - set(FIELDS)))}


def _with_ordered_calls(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    ordered = [_with_ordered_arguments(each) for each in calls]
    return {**message, "tool_calls": ordered} if _differ(ordered, calls) else message


def _with_ordered_arguments(call: Any) -> Any:
    """Text whose keys are in order stays to the letter: so does what the model wrote itself."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    given = function.get("arguments")
    arguments = given
    if isinstance(given, str):
        try:
            parsed = json.loads(given)
        except (ValueError, RecursionError):
            return call
        ordered = _ordered(parsed)
        if ordered is not parsed:
            arguments = json.dumps(ordered, ensure_ascii=False)
    elif isinstance(given, dict):
        arguments = _ordered(given)
    return (
        call if arguments is given else {**call, "function": {**function, "arguments": arguments}}
    )


def _without_volatile(message: Message) -> Message:
    if message.get("role") not in ROLES:
        return message
    content = message.get("content")
    if isinstance(content, str):
        text = VOLATILE.sub("", content)
        return message if text == content else {**message, "content": text}
    if isinstance(content, list):
        parts = [_part(each) for each in content]
        return {**message, "content": parts} if _differ(parts, content) else message
    return message


def _part(part: Any) -> Any:
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        return part
    left = VOLATILE.sub("", text)
    return part if left == text else {**part, "text": left}
