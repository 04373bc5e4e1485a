"""Whether two requests are the same but for something, wherever in them that stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from radixserve.common import common_length
from radixserve.explain.walk import MESSAGES, SECTIONS, TOOLS, Body, text_of

LEAST = 64
"""Characters that are no accident."""


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
