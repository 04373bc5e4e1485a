"""Where two requests part: the place in the body, what stands there, and what it looks like."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from radixserve.common import common_length
from radixserve.explain.guess import Guess, guess
from radixserve.explain.walk import MESSAGES, TOOLS, Body, Path, Spot, same, spots, text_of

BEFORE, BEHIND = 12, 28
"""Characters of a snippet before and from the place on."""
POINTER = 512
"""Characters of the longest pointer: keys are the client's to choose."""
WINDOW = 256
"""Characters of rendered text to both sides of a seam."""
SLACK = 16
"""A token may begin so many characters before the first one that differs."""
NEAR = 24
"""Characters to both sides of a place by which it is found in the rendered text, of which"""
ENOUGH = 6
"""so many have to be there."""
ARGUMENTS = "arguments"
"""What a call gives to a tool, mostly as JSON in a text."""
SETTINGS = (
    *("chat_template", "chat_template_kwargs", "reasoning_effort", "thinking", "tool_choice"),
    *("add_generation_prompt", "continue_final_message", "model"),
)
"""Fields that say how a prompt is rendered."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first place at which a request's prompt parts from an earlier one."""

    guess: Guess
    pointer: str
    """RFC 6901, into the body."""
    character: int
    """The first one that differs, of a text at that place; else 0."""
    message: int | None = None
    """Index among the messages; None in tools and prompts."""
    role: str | None = None
    """Of that message."""
    earlier: str = ""
    """A snippet of what stood there before."""
    later: str = ""
    """Likewise of what stands there now."""


class Seam(NamedTuple):
    """The rendered text of the later request, where it parts from the earlier one."""

    text: str
    at: int
    """The place, in characters; the first difference is there or a token further on."""

    @classmethod
    def of(cls, earlier: str, later: str) -> Seam | None:
        """Of two rendered prompts, None where one extends the other. O(length)."""
        at = common_length(earlier, later)
        if at == min(len(earlier), len(later)):
            return None
        start = max(0, at - WINDOW)
        return cls(later[start : at + WINDOW], at - start)


def diverge(
    earlier: Body, later: Body, seam: Seam | None = None, *, answer: int | None = None
) -> Divergence | None:
    """The first place at which two bodies part; None if one extends the other.

    Which of several differences comes first is the template's to say: it may put the tools before
    the system prompt, behind it, or nowhere. A ``seam`` says where the rendered prompts part, and
    so which one it was; with it there always is an answer. Without it tools come first.
    O(size of both bodies).

    Args:
        earlier: What was asked before: ``messages``, ``tools``, ``system``, ``prompt``, ...
        later: What is asked now.
        seam: Where their prompts part.
        answer: The message that answered ``earlier``, and stands at the end of it, if they part
            there or behind it. An answer has other tokens than its text would have: where that was
            changed, its prompt parts from the very beginning on.
    """
    found = list(spots(earlier, later))
    spot = next(iter(found), None) if seam is None else _at_seam(found, seam)
    if spot is None and answer is not None:
        spot = next((each for each in found if each.path[1:2] == (answer,)), None)
    if spot is not None:
        kind, spot = guess(earlier, later, spot)
        return _told(kind, spot, later)
    return None if seam is None else _rendered(earlier, later, seam)


def unanswered(section: str, place: int, answer: str, later: Body) -> Divergence:
    """``answer``, which answered the earlier one, does not stand at ``place`` of ``later``."""
    return Divergence(
        guess="message_removed",
        pointer=pointer((section, place)),
        character=0,
        message=place,
        role=_role(later, section, place),
        earlier=snippet(answer, 0),
        later=snippet(_shown(later[section][place]), 0),
    )


def _told(kind: Guess, spot: Spot, later: Body) -> Divergence:
    place = spot.path[1] if spot.path[0] in MESSAGES and len(spot.path) > 1 else None
    message = place if isinstance(place, int) else None
    return Divergence(
        guess=kind,
        pointer=pointer(spot.path),
        character=spot.character,
        message=message,
        role="system" if spot.path[0] == "system" else _role(later, spot.path[0], message),
        earlier=snippet(_shown(spot.earlier), spot.character),
        later=snippet(_shown(spot.later), spot.character),
    )


def pointer(path: Path) -> str:
    """``path`` as RFC 6901 writes it, cut where it is too long."""
    names = (str(each).replace("~", "~0").replace("/", "~1") for each in path)
    return _clean("".join(f"/{name}" for name in names)[:POINTER])


def snippet(text: str, at: int) -> str:
    """What stands around ``at``, with an ellipsis where there is more."""
    start, end = max(0, at - BEFORE), at + BEHIND
    cut = _clean(text[start:end])
    return ("…" if start else "") + cut + ("…" if end < len(text) else "")


def _clean(text: str) -> str:
    """Without lone surrogates, which cannot be sent."""
    return text.encode(errors="replace").decode()


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except (RecursionError, UnicodeEncodeError):
        return f"({type(value).__name__})"


def _role(body: Body, section: Any, message: int | None) -> str | None:
    messages = body.get(section)
    if message is None or not isinstance(messages, list) or message >= len(messages):
        return None
    role = messages[message].get("role") if isinstance(messages[message], dict) else None
    return role if isinstance(role, str) else None


def _at_seam(found: Sequence[Spot], seam: Seam) -> Spot | None:
    """The first of several places whose whole neighbourhood the rendered text shows at the seam,
    else the one of which it shows most; one that is no text where no text fits."""
    best, most = None, 0
    for spot in found:
        for text, at in _forms(spot):
            fit = _fit(text, at, seam)
            if fit == len(text) >= ENOUGH:
                return spot
            if fit > most:
                best, most = spot, fit
    if best is None or most < min(ENOUGH, len(_shown(best.later))):
        best = next((spot for spot in found if not isinstance(spot.later, str)), None)
    return best


def _forms(spot: Spot) -> Iterator[tuple[str, int]]:
    """What the rendered text may have of a place's neighbourhood, and where in it the place is."""
    if isinstance(spot.later, dict) and isinstance(spot.earlier, dict):
        yield f'"{next(iter(spot.later), "")}"', 0
        return
    if spot.path[-1] == ARGUMENTS:
        # Templates write them as JSON of their own.
        ours, theirs = _as_written(spot.earlier), _as_written(spot.later)
        at = common_length(ours, theirs)
        head, tail = theirs[max(0, at - NEAR) : at], theirs[at : at + NEAR]
        yield head + tail, len(head)
    text, at = _shown(spot.later), spot.character
    head, tail = text[max(0, at - NEAR) : at], text[at : at + NEAR]
    yield head + tail, len(head)
    if spot.path[0] in TOOLS:
        # Tools are written as JSON.
        head, tail = _json_text(head), _json_text(tail)
        yield head + tail, len(head)


def _as_written(arguments: Any) -> str:
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return _shown(arguments)


def _json_text(text: str) -> str:
    return msgspec.json.encode(_clean(text)).decode()[1:-1]


def _fit(text: str, at: int, seam: Seam) -> int:
    """How many characters around ``at`` stand in the rendered text too, if its place is at the
    seam or little behind."""
    best = 0
    head, tail, rendered = text[:at][::-1], text[at:], seam.text
    for place in range(max(0, seam.at - 1), min(len(rendered), seam.at + SLACK) + 1):
        left = right = 0
        # At most places not even one character is the same.
        if head[:1] == rendered[place - 1 : place]:
            left = common_length(head, rendered[max(0, place - NEAR) : place][::-1])
        if tail[:1] == rendered[place : place + 1]:
            right = common_length(tail, rendered[place : place + NEAR])
        best = max(best, left + right)
    return best


def _rendered(earlier: Body, later: Body, seam: Seam) -> Divergence:
    """The bodies do not differ where the prompts do: the template has made another thing of the
    same, or was told to by a setting."""
    setting = next(
        (name for name in SETTINGS if not same(earlier.get(name), later.get(name))), None
    )
    section = next((name for name in MESSAGES if isinstance(later.get(name), list)), None)
    message = None if section is None else _message_at(later[section], seam)
    path: Path = (setting,) if setting else () if section is None else (section, message or 0)
    return Divergence(
        guess="template",
        pointer=pointer(path),
        character=0,
        message=message,
        role=_role(later, section, message),
        later=snippet(seam.text, seam.at),
    )


def _message_at(messages: Sequence[Any], seam: Seam) -> int | None:
    """The message behind the last that ends before the seam, or the last that begins before it, or
    the first that ends behind it."""
    before, behind = seam.text[: seam.at], seam.text[seam.at :]
    texts = [text_of(each.get("content")) if isinstance(each, dict) else "" for each in messages]
    places = range(len(texts))
    heads = [text.strip()[:NEAR] for text in texts]
    tails = [text.strip()[-NEAR:] for text in texts]
    ended = next((each for each in reversed(places) if tails[each] and tails[each] in before), None)
    if ended is not None:
        return min(ended + 1, len(texts) - 1)
    begun = next((each for each in reversed(places) if heads[each] and heads[each] in before), None)
    if begun is not None:
        return begun
    return next((each for each in places if tails[each] and tails[each] in behind), None)
