"""What a difference between two bodies looks like."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal

from radixserve.explain.walk import MESSAGES, TOOLS, Body, Spot, same, value_at

Guess = Literal[
    "timestamp",
    "uuid",
    "random_id",
    "number",
    "tool_order",
    "tools_changed",
    "key_order",
    "whitespace",
    "document_order",
    "text_inserted",
    "text_removed",
    "unwrapped",
    "message_inserted",
    "message_removed",
    "message_order",
    "role",
    "reasoning_omitted",
    "fields",
    "template",
    "text",
]
"""``unwrapped``: the earlier text holds the later one and more around it. ``fields``: other fields,
or values that are no text. ``template``: the bodies say the same, and were rendered differently.
``text``: none of all these."""

WINDOW = 64
"""Characters to both sides of a difference in which a pattern is looked for."""
SEPARATORS = (re.compile("\n\n"), re.compile("\n"), re.compile(r"</?\w[^<>]{0,256}>"))
"""What stands between paragraphs, lines, and elements."""
PARAGRAPH = 12
"""Characters of the shortest paragraph that is known again."""
OBJECTS = 16
"""Objects inside of a text that are tried, innermost first, and"""
OBJECT = 65_536
"""how far back the beginning of one is looked for, in characters."""
AMONG = 4096
"""Messages among which one is looked for."""
SEQUENCES = frozenset({"messages", "input", "documents", "system", "content"})
"""Fields whose entries are known again where they have moved."""
OF_PARTS: dict[Guess, Guess] = {
    "message_order": "document_order",
    "message_removed": "text_removed",
    "message_inserted": "text_inserted",
}
"""What that is called where the entries are no messages."""

REASONING = frozenset({"reasoning", "reasoning_content", "thinking"})
THOUGHT = "</think>"
DIGITS = re.compile(r"\d+")
SPACE = re.compile(r"\s+")
UUID = re.compile(
    r"(?<![0-9a-f])[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE
)
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DAY = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
TIME = re.compile(
    rf"\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?:[T ,]{{1,2}}{_CLOCK})?(?:Z|[+-]\d{{2}}:?\d{{2}})?"
    rf"|\d{{1,2}}(?:[-/]\d{{1,2}}[-/]\d{{2,4}}|\.\d{{1,2}}\.\d{{4}})(?:[T ,]{{1,2}}{_CLOCK})?"
    r"|\d{8}T\d{4,6}"
    rf"|{_CLOCK}(?:\s?[ap]\.?m\b)?|\b\d{{1,2}}\s?[ap]\.?m\b"
    r"|(?:\d{1,4}\s?[年月日時时点分秒년월일시분초]\s?){2,}"
    rf"|(?<![a-z])(?:{_MONTH}|{_DAY})(?![a-z])(?:[ ,.]{{1,2}}\d{{1,4}}(?:st|nd|rd|th)?)*"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?[ .]{{1,2}}{_MONTH}(?![a-z])"
    r"|(?<!\d)1\d{9}(?:\d{3})?(?:\.\d+)?(?!\d)",
    re.IGNORECASE,
)
WORD = re.compile(r"[A-Za-z0-9_-]+")
NUMBER = re.compile(r"\d[\d,._]*")


def guess(earlier: Body, later: Body, spot: Spot) -> tuple[Guess, Spot]:
    """What the difference at ``spot`` looks like, and the place that this is about.
    O(size of both)."""
    path = spot.path
    if path[0] in TOOLS:
        return _of_tools(earlier.get(path[0]), later.get(path[0]), spot)
    for depth, step in enumerate(path):
        if not isinstance(step, int) or path[depth - 1] not in SEQUENCES:
            continue
        ours, theirs = value_at(earlier, path[:depth]), value_at(later, path[:depth])
        if not isinstance(ours, list) or not isinstance(theirs, list):
            continue
        moved = _moved(ours, theirs, step)
        if moved is not None:
            texts = depth > 1 or path[0] not in MESSAGES
            whole = Spot(path[: depth + 1], _at(ours, step), _at(theirs, step))
            return (OF_PARTS[moved] if texts else moved), whole
    if path[-1] in REASONING and not spot.later:
        return "reasoning_omitted", spot
    if path[-1] == "role":
        return "role", spot
    if path[0] == "prompt" and not isinstance(spot.later, str):
        # Of token ids nothing can be guessed.
        return "text", spot
    return _of_values(spot.earlier, spot.later, spot.character), spot


def _of_tools(earlier: Any, later: Any, spot: Spot) -> tuple[Guess, Spot]:
    if not isinstance(earlier, list) or not isinstance(later, list) or len(spot.path) < 2:
        return "tools_changed", spot
    place = spot.path[1]
    assert isinstance(place, int), "what stands below a list has an index"
    ours, theirs = [list(map(_name, each)) for each in (earlier, later)]
    if ours[place : place + 1] != theirs[place : place + 1]:
        kind: Guess = "tool_order" if sorted(ours) == sorted(theirs) else "tools_changed"
        return kind, Spot(spot.path[:2], _at(ours, place), _at(theirs, place))
    return _of_values(spot.earlier, spot.later, spot.character), spot


def _name(tool: Any) -> str:
    """Of a tool, as OpenAI's chats have it or as all others do."""
    if not isinstance(tool, dict):
        return ""
    function = tool.get("function")
    return str((function if isinstance(function, dict) else tool).get("name"))


def _moved(earlier: Sequence[Any], later: Sequence[Any], place: int) -> Guess | None:
    """Whether one of two messages that stand at the same place stands elsewhere in the other
    conversation."""
    one, other = _at(earlier, place), _at(later, place)
    gone = other is not None and any(same(other, each) for each in _behind(earlier, place))
    new = one is not None and any(same(one, each) for each in _behind(later, place))
    if gone and new:
        return "message_order"
    if gone:
        return "message_removed"
    return "message_inserted" if new else None


def _behind(values: Sequence[Any], place: int) -> Sequence[Any]:
    return values[place + 1 : place + AMONG]


def _at(values: Sequence[Any], place: int) -> Any:
    return values[place] if place < len(values) else None


def _of_values(earlier: Any, later: Any, character: int) -> Guess:
    if isinstance(earlier, str) and isinstance(later, str):
        return _of_texts(earlier, later, character)
    if isinstance(earlier, dict) and isinstance(later, dict):
        return "key_order" if earlier.keys() == later.keys() else "fields"
    numbers = (int, float)
    if type(earlier) in numbers and type(later) in numbers:
        return "number"
    return "fields"


def _of_texts(earlier: str, later: str, at: int) -> Guess:
    if SPACE.sub("", earlier) == SPACE.sub("", later):
        return "whitespace"
    if _same_object(earlier, later, at):
        return "key_order"
    if THOUGHT in earlier and earlier.rpartition(THOUGHT)[2].strip() == later.strip():
        return "reasoning_omitted"
    paragraphs = _of_paragraphs(earlier, later, at)
    if paragraphs == "document_order":
        return paragraphs
    token = _of_token(earlier, later, at)
    if token is not None:
        return token
    if at == len(later):
        return "text_removed"
    if at == len(earlier):
        return "text_inserted"
    if later in earlier:
        return "unwrapped"
    return paragraphs or "text"


def _of_token(earlier: str, later: str, at: int) -> Guess | None:
    """What kind of token differs at ``at``."""
    ours, theirs = _around(earlier, at), _around(later, at)
    if _differ(UUID, ours, theirs):
        return "uuid"
    if _differ(TIME, ours, theirs):
        return "timestamp"
    one, other = _covering(WORD, *ours), _covering(WORD, *theirs)
    if _differ(NUMBER, ours, theirs) and DIGITS.sub("#", one) == DIGITS.sub("#", other):
        return "number"
    return "random_id" if _random(one) and _random(other) else None


def _around(text: str, at: int) -> tuple[str, int]:
    """The text near ``at``, and where in it that is."""
    start = max(0, at - WINDOW)
    return text[start : at + WINDOW], at - start


def _differ(pattern: re.Pattern[str], ours: tuple[str, int], theirs: tuple[str, int]) -> bool:
    """Whether the pattern matches different things at the place."""
    one, other = _covering(pattern, *ours), _covering(pattern, *theirs)
    return bool(one) and bool(other) and one != other


def _covering(pattern: re.Pattern[str], text: str, at: int) -> str:
    """What the pattern matches so that it holds the character at ``at``, or ends there."""
    found = [each for each in pattern.finditer(text) if each.start() <= at <= each.end()]
    # Of two that meet here, the one that begins here.
    return found[-1].group() if found else ""


def _random(word: str) -> bool:
    """Whether a word looks drawn by chance: long, with letters and digits."""
    digits = sum(map(str.isdigit, word))
    letters = sum(map(str.isalpha, word))
    return len(word) >= 8 and digits >= 2 and letters >= 2


def _of_paragraphs(earlier: str, later: str, at: int) -> Guess | None:
    """Whether the paragraph at ``at`` of one text, or what is there between two tags, stands
    elsewhere in the other. Numbers do not count: documents are often numbered in their order."""
    for separator in SEPARATORS:
        ours, theirs = separator.split(earlier), separator.split(later)
        one = _known(ours[_before(separator, earlier, at)])
        other = _known(theirs[_before(separator, later, at)])
        if one == other:
            continue
        gone = len(other) >= PARAGRAPH and other in map(_known, ours)
        new = len(one) >= PARAGRAPH and one in map(_known, theirs)
        if gone and new:
            return "document_order"
        if gone or new:
            return "text_removed" if gone else "text_inserted"
    return None


def _before(separator: re.Pattern[str], text: str, at: int) -> int:
    """How many separators stand before ``at``; one that ``at`` is in belongs to what is behind."""
    return sum(1 for _ in takewhile(lambda each: each.start() < at, separator.finditer(text)))


def _known(paragraph: str) -> str:
    return DIGITS.sub("#", paragraph).strip()


def _same_object(earlier: str, later: str, at: int) -> bool:
    """Whether both texts hold, around ``at``, the same object with its keys in another order."""
    decoder = json.JSONDecoder()
    start = at + 1
    for _ in range(OBJECTS):
        start = earlier.rfind("{", max(0, at - OBJECT), start)
        if start < 0:
            return False
        if not later.startswith("{", start):
            continue
        try:
            one, ours = decoder.raw_decode(earlier[start : start + 2 * OBJECT])
            other, theirs = decoder.raw_decode(later[start : start + 2 * OBJECT])
        except (ValueError, RecursionError):
            continue
        if start + min(ours, theirs) <= at:
            continue
        return same(one, other)
    return False
