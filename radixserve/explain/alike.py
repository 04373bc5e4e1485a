"""Whether two requests are the same but for something, wherever in them that stands."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator

import msgspec

from radixserve.common import common_length
from radixserve.explain.walk import MESSAGES, SECTIONS, TOOLS, Body, text_of

LEAST = 64
"""Characters that are no accident."""
SAMPLES, SAMPLE, SMALLEST = 32, 24, 8
"""Pieces of the shorter text that are looked for in the longer one, characters of each (three or
four words, which rarely stand in both by chance), and where that would be most of the text."""


def alike(earlier: Body, later: Body) -> bool:
    """Whether more than half of what the shorter one says, and no less than ``LEAST`` characters,
    stands in the other too: in parts that both have, or at the end of the first that differs.
    O(size of both)."""
    ours, theirs = list(_texts(earlier)), list(_texts(later))
    both = Counter(ours) & Counter(theirs)
    shared = sum(map(len, both.elements()))
    one, other = (next((text for text in each if text not in both), "") for each in (ours, theirs))
    shared += common_length(one[::-1], other[::-1])
    least = min(sum(map(len, ours)), sum(map(len, theirs)))
    return shared >= LEAST and 2 * shared > least


def said(body: Body) -> str:
    """What a body says, for ``related``: however it is spaced, and whatever characters it uses for
    what looks the same. O(size)."""
    return "".join(unicodedata.normalize("NFKC", "".join(_texts(body))).split())


def related(one: str, other: str) -> bool:
    """Whether of what two bodies have ``said`` anything stands in both, which is far less work to
    find out than where they part. A few small things that are all they share may go unseen.
    O(length · SAMPLES) at most."""
    shorter, longer = sorted((one, other), key=len)
    size = min(SAMPLE, max(SMALLEST, len(shorter) // 4))
    last = max(0, len(shorter) - size)
    places = (*range(0, last, max(1, last // SAMPLES)), last)
    return any(shorter[place : place + size] in longer for place in places)


def _texts(body: Body) -> Iterator[str]:
    """What the parts of a body say."""
    for name in SECTIONS:
        value = body.get(name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, list) and name in MESSAGES:
            yield from (text_of(each.get("content")) for each in value if isinstance(each, dict))
        elif name in TOOLS and isinstance(value, list):
            yield from (_json(tool) for tool in value)
        elif value is not None:
            yield text_of(value)


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (RecursionError, UnicodeEncodeError):
        return ""
