"""What varies between two requests though what stands behind it is the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest

from msgspec.structs import replace

from radixserve.common import common_length
from radixserve.explain.divergence import Divergence, diverge, pointer, snippet
from radixserve.explain.walk import spots
from radixserve.lint.parts import Part

MOST = 4096
"""Parts that are compared, from the first that differs on."""
PAIRS = 2**16
"""Pairs of equal parts, among which the best ones are looked for."""
HEAD = 32
"""Characters that two parts have to begin with in common, to be counted: any two messages of one
role have some."""
SAME = ("tool_order", "key_order", "list_order", "whitespace")
"""Guesses that say that the whole part says the same, if it has the same letters."""
ID_FIELDS = ("id", "tool_call_id", "tool_use_id", "call_id")


@dataclass(slots=True)
class Varying:
    """A place that differs, and what would have been found but for it."""

    divergence: Divergence
    again: int
    """Characters that the earlier request has too, from there to the next place that differs."""
    fresh: int
    """Characters of the later request that the earlier one does not have, up to there."""
    ids_only: bool = False
    """Nothing but the ids of calls differ."""


def varying(earlier: list[Part], later: list[Part]) -> list[Varying]:
    """Where ``later`` parts from ``earlier``, place by place; nothing if it goes on from it.

    What is only in one of the two is skipped over, so that places further on are found as well.
    O(size of both).
    """
    start = 0
    while start < min(len(earlier), len(later)) and earlier[start].key == later[start].key:
        start += 1
    if start == len(earlier):
        return []
    ours, theirs = earlier[start : start + MOST], later[start : start + MOST]
    found: list[Varying] = []
    one, other = keys(ours, theirs)
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        if tag == "equal":
            # It stands behind the last place that differs.
            found[-1].again += sum(len(part.text) for part in theirs[j:j_end])
            continue
        for before, now in zip_longest(ours[i:i_end], theirs[j:j_end]):
            head = common_length(before.text, now.text) if before and now else 0
            if found and head >= HEAD:
                found[-1].again += head
            found.append(_between(before, now))
    return found


def keys(ours: list[Part], theirs: list[Part]) -> list[list[tuple[int, int]]]:
    """What parts are known by: their texts, and where too many have the same, which of them it is,
    so that the time to compare them does not grow with the square of their number.
    O(parts)."""
    counts = Counter(part.key for part in ours)
    numbered = sum(counts[part.key] for part in theirs) > PAIRS
    found: list[list[tuple[int, int]]] = []
    for parts in (ours, theirs):
        seen: Counter[int] = Counter()
        found.append([])
        for part in parts:
            found[-1].append((part.key, seen[part.key]))
            seen[part.key] += numbered
    return found


def _between(one: Part | None, other: Part | None) -> Varying:
    """One part in place of the other; None if there is none."""
    if one is None or other is None:
        return _only(one, other)
    if one.section != other.section or one.role != other.role:
        divergence = _told("fields" if one.section != other.section else "role", one, other)
        return Varying(divergence, 0, len(other.text))
    found = diverge(one.body, other.body)
    divergence = _told("text", one, other) if found is None else _placed(found, other)
    whole = divergence.guess in SAME and _letters(one.text) == _letters(other.text)
    start = common_length(one.text, other.text)
    again = len(other.text) - start if whole else _again(one.text[start:], other.text[start:])
    return Varying(divergence, again, len(other.text) - start - again, _ids_only(one, other))


def _only(one: Part | None, other: Part | None) -> Varying:
    part = other or one
    assert part is not None, "one of them is there"
    divergence = Divergence(
        guess="message_removed" if other is None else "message_inserted",
        pointer=part.pointer,
        character=0,
        message=part.index,
        role=part.role,
        earlier=snippet(one.text, 0) if one else "",
        later=snippet(other.text, 0) if other else "",
    )
    return Varying(divergence, 0, len(other.text) if other else 0)


def _told(guess: str, one: Part, other: Part) -> Divergence:
    at = common_length(one.text, other.text)
    return Divergence(
        guess=guess,  # type: ignore[arg-type]
        pointer=other.pointer,
        character=0,
        message=other.index,
        role=other.role,
        earlier=snippet(one.text, at),
        later=snippet(other.text, at),
    )


def _placed(found: Divergence, part: Part) -> Divergence:
    """``found`` in a body with one part, as it is in the whole body."""
    if part.index is None:
        return found
    alone = pointer((part.section, 0))
    return replace(
        found,
        pointer=part.pointer + found.pointer.removeprefix(alone),
        message=part.index,
        role=part.role,
    )


def _letters(text: str) -> Counter[str]:
    """How often it has each character, but for white space."""
    return Counter("".join(text.split()))


def _again(earlier: str, later: str) -> int:
    """Characters of ``later`` that are in ``earlier`` too, in whole lines or at the end."""
    if not earlier or not later:
        return 0
    end = common_length(earlier[::-1], later[::-1])
    lines = Counter((earlier[: len(earlier) - end]).splitlines(keepends=True))
    found = end
    for line in later[: len(later) - end].splitlines(keepends=True):
        if lines[line] > 0:
            lines[line] -= 1
            found += len(line)
    return found


def _ids_only(one: Part, other: Part) -> bool:
    found = list(spots(one.body, other.body))
    return bool(found) and all(spot.path[-1] in ID_FIELDS for spot in found)
