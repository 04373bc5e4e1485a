"""Layouts of prompts that reuse well: what changes rarely stands in front of what changes often.

A layout is a file of data in ``layouts/``, or one of your own in the same form: its parts, in the
order of the prompt, each with how often it changes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self, get_args

from radixserve.errors import RadixServeError

Message = dict[str, Any]
Changes = Literal["never", "tenant", "user", "turn", "request"]
"""How often a part is another one, from the rarest."""
Form = Literal["text", "messages", "examples", "tools"]
"""What a part is given as: a text, or a list of texts that ``each`` formats; messages; pairs of a
question and an answer; tools, which are sorted by their names."""
BETWEEN = "\n\n"
"""Stands between two texts of one message."""


class LayoutError(RadixServeError):
    """A layout cannot be used, or not with these parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a prompt."""

    name: str
    changes: Changes
    form: Form = "text"
    role: str = "user"
    """Of the message that a text stands in; neighbours of one role share a message."""
    each: str = "{text}"
    """Of a list of texts: how one of them is written, with its fields in braces."""
    default: str | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a prompt, in their order.

    Raises:
        LayoutError: a part changes more often than one behind it.
    """

    name: str
    about: str
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        order = get_args(Changes)
        last = 0
        for part in self.parts:
            if part.changes not in order or part.form not in get_args(Form):
                raise LayoutError(
                    f"{self.name}.{part.name}: changes must be one of {', '.join(order)}, and form "
                    f"one of {', '.join(get_args(Form))}."
                )
            if order.index(part.changes) < last:
                raise LayoutError(
                    f"{self.name}.{part.name} changes less often ({part.changes}) than the part "
                    f"before it ({order[last]}): put it in front."
                )
            last = order.index(part.changes)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The layout in a file of your own.

        Raises:
            LayoutError: it cannot be read, or is none.
        """
        path = Path(path)
        try:
            return cls.parse(path.stem, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeError) as error:
            raise LayoutError(f"{path} cannot be read: {error}.") from error

    @classmethod
    def parse(cls, name: str, text: str) -> Self:
        """The layout that a TOML text describes.

        Raises:
            LayoutError: it is none.
        """
        try:
            told = tomllib.loads(text)
            parts = tuple(Part(**each) for each in told["parts"])
            return cls(name, str(told["about"]), parts)
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise LayoutError(f"{name} is no layout: {error}.") from error

    def body(self, **given: Any) -> dict[str, Any]:
        """``messages``, and ``tools`` where there are some, of a request with these parts.

        Raises:
            LayoutError: a part is missing, cannot be written, or there is none of this name.
        """
        names = [part.name for part in self.parts]
        if unknown := sorted(given.keys() - set(names)):
            raise LayoutError(f"{self.name} has no part {unknown[0]!r}; it has {', '.join(names)}.")
        messages: list[Message] = []
        body: dict[str, Any] = {"messages": messages}
        for part in self.parts:
            value = given.get(part.name, part.default)
            if value is None and not part.optional:
                raise LayoutError(f"{self.name} needs {part.name}.")
            if value is None:
                continue
            _check(part, value)
            if part.form == "tools":
                body |= {"tools": sorted(value, key=_tool_name)} if value else {}
            elif part.form == "messages":
                messages += value
            elif part.form == "examples":
                messages += _turns(part, value)
            else:
                _write(messages, part, value)
        return body

    def messages(self, **given: Any) -> list[Message]:
        """The messages of ``body``."""
        messages: list[Message] = self.body(**given)["messages"]
        return messages


def names() -> list[str]:
    """The layouts that are here."""
    folder = files("radixserve.prompts") / "layouts"
    return sorted(each.name.removesuffix(".toml") for each in folder.iterdir())


def layout(name: str) -> Layout:
    """One of ``names``.

    Raises:
        LayoutError: there is no such layout.
    """
    if name not in names():
        raise LayoutError(f"There is no layout {name!r}; there are {', '.join(names())}.")
    file = files("radixserve.prompts") / "layouts" / f"{name}.toml"
    return Layout.parse(name, file.read_text(encoding="utf-8"))


def _check(part: Part, value: Any) -> None:
    if isinstance(value, str) and part.form == "text":
        return
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        text = "a text or " if part.form == "text" else ""
        raise LayoutError(f"{part.name} must be {text}a list, not {type(value).__name__}.")
    kinds: dict[Form, tuple[type, ...]] = {"text": (str, Mapping), "examples": (object,)}
    for place, each in enumerate(value):
        if not isinstance(each, kinds.get(part.form, (Mapping,))):
            raise LayoutError(f"{part.name}[{place}] cannot be {type(each).__name__}.")


def _write(
    messages: list[Message], part: Part, value: str | Sequence[str | Mapping[str, str]]
) -> None:
    """Put a text, or a list of them, into a message of its role."""
    try:
        texts = [value] if isinstance(value, str) else [_one(part, each) for each in value]
    except KeyError as error:
        raise LayoutError(f"{part.name}: {error} is missing in one of them.") from error
    text = BETWEEN.join(texts)
    if not text:
        return
    if messages and messages[-1]["role"] == part.role and isinstance(messages[-1]["content"], str):
        messages[-1] = {**messages[-1], "content": messages[-1]["content"] + BETWEEN + text}
    else:
        messages.append({"role": part.role, "content": text})


def _one(part: Part, value: str | Mapping[str, str]) -> str:
    return part.each.format_map({"text": value} if isinstance(value, str) else value)


def _turns(part: Part, examples: Sequence[tuple[str, str]]) -> list[Message]:
    turns: list[Message] = []
    for place, pair in enumerate(examples):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise LayoutError(f"{part.name}[{place}] must be a pair: a question and its answer.")
        question, answer = pair
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return turns


def _tool_name(tool: Mapping[str, Any]) -> str:
    """Of OpenAI's form or of Anthropic's."""
    function = tool.get("function")
    return str((function if isinstance(function, Mapping) else tool).get("name", ""))
