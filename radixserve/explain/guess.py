"""What a difference between two bodies looks like."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal

import msgspec

from radixserve.common import common_length
from radixserve.explain.walk import MESSAGES, TOOLS, Body, Path, Spot, same, text_of, value_at
from radixserve.explain.written import same_form, same_json

Guess = Literal[
    "timestamp",
    "uuid",
    "random_id",
    "number",
    "tool_order",
    "tools_changed",
    "key_order",
    "list_order",
    "json_format",
    "whitespace",
    "unicode_form",
    "document_order",
    "text_inserted",
    "text_removed",
    "unwrapped",
    "message_inserted",
    "message_removed",
    "message_order",
    "messages_merged",
    "message_split",
    "history_summarized",
    "role",
    "reasoning_omitted",
    "fields",
    "template",
    "text",
]
"""``list_order``: entries of a list in a tool's schema. ``json_format``: the same JSON with other
escapes or numbers. ``unicode_form``: text that looks the same, of other characters.
``unwrapped``: the earlier text holds the later one and more around it. ``history_summarized``: one
message in place of several. ``fields``: other fields, or values that are no text. ``template``: the
bodies say the same, and were rendered differently. ``text``: none of all these."""

WINDOW = 64
"""Characters to both sides of a difference in which a pattern is looked for."""
SEPARATORS = (re.compile("\n\n"), re.compile("\n"), re.compile(r"</?\w[^<>]{0,256}>"))
"""What stands between paragraphs, lines, and elements."""
PARAGRAPH = 12
"""Characters of the shortest paragraph that is known again."""
ALIKE = 4
"""Characters that two texts must have in common behind two numbers."""
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
        texts = depth > 1 or path[0] not in MESSAGES
        moved = _moved(ours, theirs, step, texts=texts)
        if moved is not None:
            whole = Spot(path[: depth + 1], _at(ours, step), _at(theirs, step))
            return (OF_PARTS.get(moved, moved) if texts else moved), whole
        if not texts and (joined := _joined(ours, theirs, step)) is not None:
            return joined, spot
        if not texts and _summarized(ours, theirs, step):
            return "history_summarized", Spot(path[:2], ours[step], theirs[step])
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
    turned = _turned(earlier, later, spot.path)
    if turned is not None:
        return "list_order", turned
    return _of_values(spot.earlier, spot.later, spot.character), spot


def _name(tool: Any) -> str:
    """Of a tool, as OpenAI's chats have it or as all others do."""
    if not isinstance(tool, dict):
        return ""
    function = tool.get("function")
    return str((function if isinstance(function, dict) else tool).get("name"))


def _turned(earlier: Any, later: Any, path: Path) -> Spot | None:
    """The first entry that differs of a list around the place which has the same entries in another
    order; None if there is none. ``path`` begins with the name of the tools' field."""
    for depth in range(2, len(path)):
        ours, theirs = (value_at(each, path[1:depth]) for each in (earlier, later))
        written, others = _encoded(ours), _encoded(theirs)
        if sorted(written) != sorted(others):
            continue
        # As text, in which True is not 1, and keys have an order.
        pairs = enumerate(zip(written, others, strict=True))
        place = next((each for each, (mine, yours) in pairs if mine != yours), None)
        if place is not None:
            one, other = ours[place], theirs[place]
            texts = isinstance(one, str) and isinstance(other, str)
            character = common_length(one, other) if texts else 0
            return Spot((*path[:depth], place), one, other, character)
    return None


def _encoded(values: Any) -> list[bytes]:
    """The entries of a list; of what is none, or cannot be written, nothing."""
    try:
        return list(map(msgspec.json.encode, values)) if isinstance(values, list) else []
    except (RecursionError, UnicodeEncodeError):
        return []


def _moved(
    earlier: Sequence[Any], later: Sequence[Any], place: int, *, texts: bool
) -> Guess | None:
    """Whether one of two messages (or ``texts``) that stand at the same place stands elsewhere in
    the other conversation."""
    one, other = _at(earlier, place), _at(later, place)
    gone = [] if other is None else _equal(other, earlier, place)
    new = [] if one is None else _equal(one, later, place)
    if gone and new:
        return "message_order"
    # Short messages may be said again: one that has moved is followed by the same as before.
    if gone and (texts or _follows(earlier, gone, later, place)):
        return "message_removed"
    return "message_inserted" if new and (texts or _follows(later, new, earlier, place)) else None


def _equal(value: Any, values: Sequence[Any], place: int) -> list[int]:
    """Where behind ``place`` there is the same."""
    behind = range(place + 1, min(len(values), place + AMONG))
    return [index for index in behind if same(value, values[index])]


def _follows(
    values: Sequence[Any], places: Sequence[int], others: Sequence[Any], place: int
) -> bool:
    """Whether what stands behind one of ``places`` is what stands behind ``place`` of the others,
    or one of them ends there."""
    if place + 1 >= len(others):
        return True
    return any(
        index + 1 >= len(values) or same(values[index + 1], others[place + 1]) for index in places
    )


def _joined(earlier: Sequence[Any], later: Sequence[Any], place: int) -> Guess | None:
    """Whether two messages of a role in one conversation are one of the other."""
    one, after = (_said(earlier, each) for each in (place, place + 1))
    other, then = (_said(later, each) for each in (place, place + 1))
    if _is_both(other, one, after):
        return "messages_merged"
    return "message_split" if _is_both(one, other, then) else None


def _is_both(whole: tuple[str, str], first: tuple[str, str], second: tuple[str, str]) -> bool:
    """Whether a message (its role and its text) is two, with anything between them."""
    roles, (text, head, tail) = {whole[0], first[0], second[0]}, (whole[1], first[1], second[1])
    if len(roles) > 1 or not head or not tail:
        return False
    return text.startswith(head) and tail in text[len(head) :]


def _said(messages: Sequence[Any], place: int) -> tuple[str, str]:
    message = _at(messages, place)
    if not isinstance(message, dict):
        return "", ""
    return str(message.get("role")), text_of(message.get("content"))


def _summarized(earlier: Sequence[Any], later: Sequence[Any], place: int) -> bool:
    """Whether what stands behind ``place`` now stood further behind before."""
    behind = _at(later, place + 1)
    if place >= len(earlier) or behind is None or same(behind, _at(earlier, place + 1)):
        return False
    return bool(_equal(behind, earlier, place + 1))


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
    written = same_form(earlier, later, at) or same_json(earlier, later, at)
    if written is not None:
        return written
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
    if later.endswith(earlier[at:]):
        return "text_inserted"
    if earlier.endswith(later[at:]):
        return "text_removed"
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
        # A number of something else, as of another document, is not what differs.
        return "number" if _goes_on(NUMBER, ours, theirs) else None
    return "random_id" if _random(one) and _random(other) else None


def _around(text: str, at: int) -> tuple[str, int]:
    """The text near ``at``, and where in it that is."""
    start = max(0, at - WINDOW)
    return text[start : at + WINDOW], at - start


def _differ(pattern: re.Pattern[str], ours: tuple[str, int], theirs: tuple[str, int]) -> bool:
    """Whether the pattern matches different things at the place."""
    one = _covering(pattern, *ours)
    other = _covering(pattern, *theirs) if one else ""
    return bool(other) and one != other


def _goes_on(pattern: re.Pattern[str], ours: tuple[str, int], theirs: tuple[str, int]) -> bool:
    """Whether both texts go on alike behind what the pattern matches at the place."""
    rests = []
    for text, at in (ours, theirs):
        match = _match(pattern, text, at)
        rests.append("" if match is None else text[match.end() :])
    return common_length(*rests) >= min(ALIKE, *map(len, rests))


def _covering(pattern: re.Pattern[str], text: str, at: int) -> str:
    """What the pattern matches so that it holds the character at ``at``, or ends there."""
    match = _match(pattern, text, at)
    return "" if match is None else match.group()


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str] | None:
    """The match that holds the character at ``at``, or ends there; of two that meet here, the one
    that begins here."""
    last = None
    for match in pattern.finditer(text):
        if match.start() > at:
            break
        last = match
    return last if last is not None and last.end() >= at else None


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
        if len(ours) == len(theirs) == 1:
            continue  # there is nowhere else
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
