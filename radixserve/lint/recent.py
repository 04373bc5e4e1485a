"""The last requests of a log, to find the one that another one was meant to go on from."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from itertools import islice

from radixserve.lint.logs import Request, again
from radixserve.lint.parts import Part

ROOM = 64 * 2**20
"""Bytes of lines that are kept."""
LATEST = 4
"""Requests that are tried where none has a part in common with the new one."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of a request: its parts are read again when they are needed."""

    place: str
    tenant: str
    keys: tuple[int, ...]
    sizes: tuple[int, ...]
    """Characters of each part."""
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
        """The last request that has this part anywhere."""
        self._number = 0

    def add(self, request: Request, tokens: int) -> None:
        """One more, with a prompt of so many tokens. Amortized O(parts)."""
        keys = tuple(part.key for part in request.parts)
        sizes = tuple(len(part.text) for part in request.parts)
        kept = Kept(request.place, request.tenant, keys, sizes, request.raw, tokens)
        self._number += 1
        self._kept[self._number] = kept
        self._left -= len(kept.raw)
        for head in _heads(keys):
            self._heads[request.tenant, head] = self._number
        for key in keys:
            self._holders[request.tenant, key] = self._number
        while self._left < 0 and len(self._kept) > 1:
            self._drop()

    def _drop(self) -> None:
        number, old = self._kept.popitem(last=False)
        self._left += len(old.raw)
        for index, names in ((self._heads, _heads(old.keys)), (self._holders, old.keys)):
            for name in names:
                if index.get((old.tenant, name)) == number:
                    del index[old.tenant, name]

    def nearest(self, request: Request) -> Kept | None:
        """The request that has most in common with this one: from the front, or anywhere.
        O(parts)."""
        keys = [part.key for part in request.parts]
        sizes = {part.key: len(part.text) for part in request.parts}
        found = {self._by_head(request.tenant, keys), self._by_votes(request.tenant, sizes)}
        kept = [self._kept[number] for number in found if number in self._kept]
        if not kept:
            latest = islice(reversed(self._kept.values()), LATEST)
            kept = [each for each in latest if each.tenant == request.tenant]
        return max(kept, key=lambda each: _common(each, keys), default=None)

    def _by_head(self, tenant: str, keys: list[int]) -> int:
        best = 0
        for head in _heads(tuple(keys)):
            number = self._heads.get((tenant, head), 0)
            if not number:
                break
            best = number
        return best

    def _by_votes(self, tenant: str, sizes: dict[int, int]) -> int:
        votes: Counter[int] = Counter()
        for key, size in sizes.items():
            if number := self._holders.get((tenant, key), 0):
                votes[number] += size
        return max(votes, key=lambda number: (votes[number], number), default=0)


def _heads(keys: tuple[int, ...]) -> list[int]:
    """A hash for each beginning."""
    found, head = [], 0
    for key in keys:
        head = hash((head, key))
        found.append(head)
    return found


def _common(kept: Kept, keys: list[int]) -> tuple[int, int]:
    """Characters of the parts that both have, and those they have from the front."""
    sizes = dict(zip(kept.keys, kept.sizes, strict=True))
    total = sum(sizes.get(key, 0) for key in set(keys))
    front = 0
    for one, other in zip(kept.keys, keys, strict=False):
        if one != other:
            break
        front += sizes[one]
    return total, front
