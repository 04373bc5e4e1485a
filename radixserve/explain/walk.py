"""The places at which two bodies differ, in the order of what a template makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from radixserve.common import common_length

Body = Mapping[str, Any]
"""A request's body, as it was sent."""
Path = tuple[str | int, ...]

TOOLS = ("tools", "functions")
MESSAGES = ("messages", "input")
SECTIONS = (*TOOLS, "documents", "system", "instructions", *MESSAGES, "prompt")
"""Fields that a prompt is made of."""
MOST = 32
"""Places that are looked at in one section."""
DEPTH = 32
"""Values that are nested more deeply are compared as wholes."""
VISITS = 20_000
"""So are all others, once so many were looked at, and those that have more in them than is left."""
UNSEEN = frozenset({"cache_control", "prompt_cache_breakpoint"})
"""Marks for caches, which move from turn to turn and are no part of a prompt."""
ORDERED = frozenset({"arguments", "input"})
"""Fields of messages whose keys stand in the prompt as they were sent."""
FIRST_KEYS = ("role", "name", "reasoning", "reasoning_content", "content", "tool_calls")
"""Of messages, in the order of most templates; others follow by their names."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A place at which two bodies differ: what stands there, None if nothing does.

    Of objects whose keys part, what is left of them from there on.
    """

    path: Path
    earlier: Any
    later: Any
    character: int = 0
    """The first one that differs, of texts."""


def spots(earlier: Body, later: Body) -> Iterator[Spot]:
    """Where two bodies differ. More messages, or a longer prompt, are no difference.
    O(size of both), and bounded in Python's own steps."""
    for name in SECTIONS:
        walk = Walk(ordered=name in TOOLS)
        yield from islice(walk.section(earlier.get(name), later.get(name), name), MOST)


class Walk:
    """A walk through two values. ``ordered`` says that their keys stand in the prompt as they
    were sent."""

    def __init__(self, *, ordered: bool):
        self._ordered = ordered
        self._visits = 0

    def section(self, earlier: Any, later: Any, name: str) -> Iterator[Spot]:
        if isinstance(earlier, str) and isinstance(later, str):
            at = common_length(earlier, later)
            if at < min(len(earlier), len(later)):
                yield Spot((name,), earlier, later, at)
        elif isinstance(earlier, list) and isinstance(later, list) and name not in TOOLS:
            for index, (one, other) in enumerate(zip(earlier, later, strict=False)):
                if not same(one, other) or _calls(one):
                    yield from self.between(one, other, (name, index))
        else:
            yield from self.between(earlier, later, (name,))

    def between(self, earlier: Any, later: Any, path: Path) -> Iterator[Spot]:
        """Where the values at ``path`` differ."""
        self._visits += 1 + _entries(earlier) + _entries(later)
        if isinstance(earlier, str) and isinstance(later, str):
            if earlier != later:
                yield Spot(path, earlier, later, common_length(earlier, later))
        elif len(path) > DEPTH or self._visits > VISITS:
            if not same(earlier, later):
                yield Spot(path, earlier, later)
        elif isinstance(earlier, dict) and isinstance(later, dict):
            if self._ordered or path[-1] in ORDERED:
                yield from self._in_order(earlier, later, path)
            else:
                for key in sorted(earlier.keys() | later.keys(), key=_rank):
                    if key not in UNSEEN:
                        yield from self.between(earlier.get(key), later.get(key), (*path, key))
        elif isinstance(earlier, list) and isinstance(later, list):
            for index in range(max(len(earlier), len(later))):
                yield from self.between(_at(earlier, index), _at(later, index), (*path, index))
        elif path[-1] in ("content", "system") and _plain(earlier) and _plain(later):
            # A template makes the same of a text and of its only part.
            yield from self.between(text_of(earlier), text_of(later), path)
        elif type(earlier) is not type(later) or earlier != later:
            yield Spot(path, earlier, later)

    def _in_order(self, earlier: Body, later: Body, path: Path) -> Iterator[Spot]:
        ours = [key for key in earlier if key not in UNSEEN]
        theirs = [key for key in later if key not in UNSEEN]
        for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            if one != other:
                yield Spot(
                    path,
                    {key: earlier[key] for key in ours[place:]},
                    {key: later[key] for key in theirs[place:]},
                )
                return
            yield from self.between(earlier[one], later[other], (*path, one))
        shared = min(len(ours), len(theirs))
        for key in (*ours[shared:], *theirs[shared:]):
            yield Spot((*path, key), earlier.get(key), later.get(key))


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal; those that are nested too deeply to tell are not."""
    try:
        return bool(one == other)
    except RecursionError:
        return False


def _calls(message: Any) -> bool:
    """Whether there may be arguments in it, whose keys have an order, which equality ignores."""
    return isinstance(message, dict) and (
        "tool_calls" in message or isinstance(message.get("content"), list)
    )


def text_of(content: Any) -> str:
    """The text of a message's content, which may be in parts."""
    if isinstance(content, str):
        return content
    parts: Iterable[Any] = content if isinstance(content, list) else ()
    return "".join(
        part["text"]
        for part in parts
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    )


def value_at(body: Any, path: Path) -> Any:
    """What stands at ``path``; None if nothing does."""
    for step in path:
        if isinstance(body, list) and isinstance(step, int):
            body = _at(body, step)
        elif isinstance(body, Mapping):
            body = body.get(step)
        else:
            return None
    return body


def _entries(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _plain(content: Any) -> bool:
    """Whether it is nothing but text."""
    if not isinstance(content, list):
        return isinstance(content, str)
    return all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content)


def _rank(key: str) -> tuple[int, str]:
    return (FIRST_KEYS.index(key) if key in FIRST_KEYS else len(FIRST_KEYS), key)


def _at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else None
