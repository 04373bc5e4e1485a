"""The last requests of a log, to find the one that another one was meant to go on from."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from radixserve.lint.logs import Request, again
from radixserve.lint.parts import Part

ROOM = 64 * 2**20
"""Bytes of lines that are kept."""
LATEST = 4
"""Requests that are tried where none has a part in common with the new one."""
ENDS = (64, 512, 4096)
"""Characters by which one end of a part is known again, where the other one varies."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of a request: its parts are read again when they are needed."""

    place: str
    tenant: str
    keys: tuple[int, ...]
    marks: dict[int, int]
    """What it is known by, its parts and their ends, and for how many characters each stands."""
    raw: bytes
    tokens: int
    """Of its prompt."""

    def parts(self) -> list[Part]:
        return again(self.raw)


class Recent:
    """Requests by what they begin with and by what they hold, until ``room`` is spent; then the
    oldest ones go."""

    def __init__(self, room: int = ROOM):
        self._left = room
        self._kept: OrderedDict[int, Kept] = OrderedDict()
        self._heads: dict[tuple[str, int], int] = {}
        """The last request that begins with these parts, by a hash of them all."""
        self._holders: dict[tuple[str, int], int] = {}
        """The last request that has this mark anywhere."""
        self._number = 0

    def add(self, request: Request, tokens: int) -> None:
        """One more, with a prompt of so many tokens. Amortized O(parts)."""
        keys = tuple(part.key for part in request.parts)
        marks = _marks(request.parts)
        kept = Kept(request.place, request.tenant, keys, marks, request.raw, tokens)
        self._number += 1
        self._kept[self._number] = kept
        self._left -= len(kept.raw)
        for head in _heads(keys):
            self._heads[request.tenant, head] = self._number
        for mark in marks:
            self._holders[request.tenant, mark] = self._number
        while self._left < 0 and len(self._kept) > 1:
            self._drop()

    def _drop(self) -> None:
        number, old = self._kept.popitem(last=False)
        self._left += len(old.raw)
        for index, names in ((self._heads, _heads(old.keys)), (self._holders, old.marks)):
            for name in names:
                if index.get((old.tenant, name)) == number:
                    del index[old.tenant, name]

    def nearest(self, request: Request) -> Kept | None:
        """The request that has most in common with this one: from the front, or anywhere.
        O(parts)."""
        keys = tuple(part.key for part in request.parts)
        marks = _marks(request.parts)
        found = {self._by_head(request.tenant, keys), self._by_votes(request.tenant, marks)}
        kept = [self._kept[number] for number in found if number in self._kept]
        if not kept:
            latest = islice(reversed(self._kept.values()), LATEST)
            kept = [each for each in latest if each.tenant == request.tenant]
        return max(kept, key=lambda each: _common(each, keys, marks), default=None)

    def _by_head(self, tenant: str, keys: tuple[int, ...]) -> int:
        best = 0
        for head in _heads(keys):
            number = self._heads.get((tenant, head), 0)
            if not number:
                break
            best = number
        return best

    def _by_votes(self, tenant: str, marks: dict[int, int]) -> int:
        votes: Counter[int] = Counter()
        for mark, size in marks.items():
            if number := self._holders.get((tenant, mark), 0):
                votes[number] += size
        return max(votes, key=lambda number: (votes[number], number), default=0)


def _heads(keys: tuple[int, ...]) -> list[int]:
    """A hash for each beginning."""
    found, head = [], 0
    for key in keys:
        head = hash((head, key))
        found.append(head)
    return found


def _marks(parts: Sequence[Part]) -> dict[int, int]:
    """A part stands for its characters, and each of its ends, if it is long, for those of that: of
    a text with a clock in front the end is the same."""
    found: dict[int, int] = {}
    for part in parts:
        found[part.key] = len(part.text)
        known = 0
        for size in ENDS:
            if len(part.text) < 2 * size:
                break
            for end in (part.text[:size], part.text[-size:]):
                found[hash((part.section, part.role, end))] = size - known
            known = size
    return found


def _common(kept: Kept, keys: tuple[int, ...], marks: dict[int, int]) -> tuple[int, int]:
    """What both are known by, and characters of the parts that they have from the front."""
    total = sum(min(size, kept.marks.get(mark, 0)) for mark, size in marks.items())
    front = 0
    for one, other in zip(kept.keys, keys, strict=False):
        if one != other:
            break
        front += kept.marks[one]
    return total, front
