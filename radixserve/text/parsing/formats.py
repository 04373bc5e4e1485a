"""How families of models mark reasoning and tool calls: the tables in ``families/``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal, TypeVar

from radixserve.errors import ConfigError

AUTO = "auto"
NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How tool calls are written."""

    names: tuple[str, ...]
    """What an operator calls it; the first one is its own."""
    template: tuple[tuple[str, ...], ...] = ()
    """Texts in chat templates that tell it: all of one of the groups."""
    form: Literal["json", "named", "mixed", "tagged", "channels"]
    """``json``: an object with name and arguments, or a list of them; ``named``: the name, then an
    object; ``mixed``: either of these; ``tagged``: the name, then a tag around each argument;
    ``channels``: that of gpt-oss."""
    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()
    """Markers around several calls."""
    bare: bool = False
    """An answer that begins with an object may be a call without a marker."""
    name_end: tuple[str, ...] = ()
    name_prefix: str = ""
    name_number: str = ""
    """What stands between the name and the number of the call."""
    key_open: tuple[str, ...] = ()
    key_close: tuple[str, ...] = ()
    value_open: tuple[str, ...] = ()
    value_close: tuple[str, ...] = ()
    call: str
    """A call as the model writes it, with $name and $arguments."""
    argument: str = ""
    """Of ``tagged``: an argument as the model writes it, with $key and $value."""
    before: str = ""
    """What stands before the first call, between two, and after the last one."""
    between: str = ""
    after: str = ""
    id_length: int = 0
    """Letters and digits that the template wants in the id of a call; 0 if it takes any id."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers; special tokens among them must reach the parser."""
        markers = [*self.open, *self.close, *self.noise, *self.name_end]
        return (*markers, *self.key_open, *self.key_close, *self.value_open, *self.value_close)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """How reasoning is written."""

    names: tuple[str, ...]
    template: tuple[tuple[str, ...], ...] = ()
    form: Literal["block", "channels"]
    """``block``: between two markers in front of the answer; ``channels``: that of gpt-oss."""
    open: str = ""
    close: str = ""
    interrupts: tuple[str, ...] = ()
    """Markers of tool calls that end it too."""
    implied: bool = False
    """Answers begin inside of it, though neither prompt nor model say so."""
    efforts: dict[str, str] | None = None
    """``reasoning_effort`` by the word for it that the template knows, where they differ."""

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(each for each in (self.open, self.close, *self.interrupts) if each)


Format = TypeVar("Format", ToolFormat, ReasoningFormat)


@lru_cache(maxsize=1)
def _tables() -> tuple[dict[str, Any], ...]:
    folder = files("radixserve.text.parsing") / "families"
    tables = sorted((each for each in folder.iterdir() if each.name.endswith(".toml")), key=str)
    return tuple(tomllib.loads(each.read_text(encoding="utf-8")) for each in tables)


@lru_cache(maxsize=1)
def tool_formats() -> tuple[ToolFormat, ...]:
    """All formats of tool calls."""
    return tuple(ToolFormat(**_frozen(table["tools"])) for table in _tables() if "tools" in table)


@lru_cache(maxsize=1)
def reasoning_formats() -> tuple[ReasoningFormat, ...]:
    """All formats of reasoning."""
    return tuple(
        ReasoningFormat(**_frozen(table["reasoning"]))
        for table in _tables()
        if "reasoning" in table
    )


def choose(name: str, formats: Sequence[Format], template: str, option: str) -> Format | None:
    """The format called ``name``; for ``auto`` the one that ``template`` uses, if one does.

    Of several the one counts whose texts are the more.

    Raises:
        ConfigError: there is none of this name; the error names ``option``.
    """
    if name == NONE:
        return None
    if name == AUTO:
        rated = [(_rate(each.template, template), each) for each in formats]
        best = max(rated, key=lambda pair: pair[0])
        return best[1] if best[0] else None
    for each in formats:
        if name in each.names:
            return each
    known = ", ".join(sorted(each.names[0] for each in formats))
    raise ConfigError(f"{option} {name!r} is not known. There are auto, none, {known}.")


def _rate(groups: Iterable[tuple[str, ...]], template: str) -> int:
    """How many texts of a group ``template`` holds, if it holds all of them."""
    return max((len(each) for each in groups if all(text in template for text in each)), default=0)


def _frozen(table: dict[str, Any]) -> dict[str, Any]:
    return {name: _tuple(value) for name, value in table.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
