"""A request with what varies behind what does not, as a template to try."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from radixserve.explain.divergence import diverge
from radixserve.explain.walk import TOOLS, text_of
from radixserve.lint.parts import Part
from radixserve.lint.report import Suggestion

PIECE = re.compile(r"[^\n]*?(?:[.!?](?=\s)\s*|\n+|\Z)", re.DOTALL)
"""A sentence or a line, with the space behind it."""
NAMES = {
    "timestamp": "time",
    "uuid": "id",
    "random_id": "id",
    "number": "number",
    "document_order": "documents",
}
"""What a piece is called after what varies in it."""
FIRST = ("system", "developer")
HISTORY: dict[str, Any] = {"role": "...", "content": "{{ history }}"}
LONGEST = 200
"""Characters of an example."""


def suggestion(earlier: list[Part], later: list[Part]) -> Suggestion | None:
    """The second of two requests, reordered so that the two would share more: what varies in tools
    and system prompt goes behind the history. None if it does not vary there. O(size of both)."""
    before = {(part.section, part.index if _first(part) else None): part for part in earlier}
    varying: dict[str, str] = {}
    messages: list[dict[str, Any]] = []
    tools = None
    for part in later:
        other = before.get((part.section, part.index))
        if part.section in TOOLS:
            tools = _of_tools(other, part)
        elif _first(part):
            text = _text(part)
            if other is not None and other.key != part.key:
                text = _constant(_text(other), text, _name(other, part), varying)
            messages.append({"role": part.role or "system", "content": text.strip()})
    if not (varying or tools):
        return None
    if any(part.role == "assistant" for part in later):
        messages.append(HISTORY)
    last = [f"{{{{ {name} }}}}" for name in varying] + ["{{ question }}"]
    messages.append({"role": "user", "content": "\n\n".join(last)})
    return Suggestion(messages=messages, tools=tools, varying=varying)


def _first(part: Part) -> bool:
    return part.section in ("system", "instructions") or part.role in FIRST


def _text(part: Part) -> str:
    return text_of(part.value if part.index is None else part.value.get("content"))


def _of_tools(other: Part | None, part: Part) -> str | None:
    if other is None or other.key == part.key:
        return None
    found = diverge(other.body, part.body)
    if found is not None and found.guess == "tool_order":
        return "sorted by name"
    return "with keys in one order" if found is not None and found.guess == "key_order" else None


def _name(other: Part, part: Part) -> str:
    found = diverge(other.body, part.body)
    return NAMES.get(found.guess, "varying") if found is not None else "varying"


def _constant(earlier: str, later: str, name: str, varying: dict[str, str]) -> str:
    """The pieces of ``later`` that ``earlier`` has too; the others go to ``varying``."""
    known = Counter(_pieces(earlier))
    kept, moved = [], []
    for piece in _pieces(later):
        if known[piece] > 0:
            known[piece] -= 1
            kept.append(piece)
        else:
            moved.append(piece)
    if moved:
        free = name if name not in varying else f"{name}_{len(varying) + 1}"
        varying[free] = "".join(moved).strip()[:LONGEST]
    return "".join(kept)


def _pieces(text: str) -> Iterator[str]:
    return (each for each in PIECE.findall(text) if each)
