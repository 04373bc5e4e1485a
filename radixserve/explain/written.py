"""Texts that say the same, and are written in another way."""

from __future__ import annotations

import json
import unicodedata
from typing import Literal

from radixserve.common import common_length

OBJECTS = 16
"""Objects inside of a text that are tried, innermost first, and"""
OBJECT = 65_536
"""how far back the beginning of one is looked for, in characters."""
EXACT = 15
"""Digits that a float holds."""
WINDOW = 64
"""Characters behind a difference that are compared, of which"""
ALIKE = 12
"""so many must be the same, but for how they are written; or all."""
BEFORE = 8
"""Characters before a difference that may be a part of it: an accent goes with its letter."""
UNSEEN = "Cf"
"""Unicode's category of what is not shown: joiners, marks of the order of bytes or of reading."""


def same_json(earlier: str, later: str, at: int) -> Literal["key_order", "json_format"] | None:
    """Whether both texts hold, around ``at``, the same object: with its keys in another order, or
    with other numbers or escapes. O(window · objects)."""
    decoder = json.JSONDecoder(parse_int=_number)
    start = at + 1
    for _ in range(OBJECTS):
        start = earlier.rfind("{", max(0, at - OBJECT), start)
        if start < 0:
            return None
        if not later.startswith("{", start):
            continue
        try:
            one, ours = decoder.raw_decode(earlier[start : start + 2 * OBJECT])
            other, theirs = decoder.raw_decode(later[start : start + 2 * OBJECT])
            if start + min(ours, theirs) <= at:
                continue
            # As text, since True equals 1.
            if json.dumps(one) == json.dumps(other):
                return "json_format"
            if json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True):
                return "key_order"
        except (ValueError, RecursionError):
            continue
        return None
    return None


def _number(text: str) -> int | float:
    """3 is 3.0, as far as a float is exact."""
    return float(text) if len(text) <= EXACT else int(text)


def same_form(earlier: str, later: str, at: int) -> Literal["whitespace", "unicode_form"] | None:
    """Whether texts go on alike behind ``at``, but for white space, or for characters that look the
    same or are not shown. O(window), or of both if nothing but white space differs."""
    if _bare(earlier) == _bare(later):
        return "whitespace"
    ours, theirs = earlier[at : at + WINDOW], later[at : at + WINDOW]
    if ours[:1].isspace() or theirs[:1].isspace():
        one, other = _bare(ours), _bare(theirs)
        if common_length(one, other) >= ALIKE:
            return "whitespace"
    start = max(0, at - BEFORE)
    head = len(_plain(earlier[start:at]))
    one, other = (_plain(text[start : at + WINDOW]) for text in (earlier, later))
    return "unicode_form" if one == other or common_length(one, other) >= head + ALIKE else None


def _bare(text: str) -> str:
    """Without white space."""
    return "".join(text.split())


def _plain(text: str) -> str:
    if text.isascii():
        return text
    shown = "".join(each for each in text if unicodedata.category(each) != UNSEEN)
    return unicodedata.normalize("NFKC", shown)
