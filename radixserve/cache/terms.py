"""For how long a prefix is kept, and how many pages are.

A *term* is one integer: until when, in whole seconds of the engine's clock, and for how many
seconds at a time. Of two terms the greater ends later; 0 is none. Below 0 it says when somebody is
expected to come back: the greater, the sooner.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Literal

import msgspec

LONGEST = 86_400
"""Seconds that anything may be kept at a time."""
DONE = -(1 << 62)
"""In place of a term: nobody will come back for it, so that it goes before all else."""
_BITS = 17
_SECONDS = (1 << _BITS) - 1


def term(now: int, seconds: int) -> int:
    """From ``now`` on for so many seconds; what ends later is the greater. O(1)."""
    return (now + seconds) << _BITS | seconds


def again(kept: int, now: int) -> int:
    """The same time once more, from ``now`` on. O(1)."""
    return term(now, kept & _SECONDS)


def end_of(kept: int) -> int:
    """When that is over, in seconds of the engine's clock. O(1)."""
    return kept >> _BITS


def expected(now: int, seconds: int) -> int:
    """In place of a term: somebody comes back so many seconds from ``now`` on. O(1)."""
    return -max(1, now + seconds)


def due(kept: int) -> int:
    """When somebody comes back for what is kept so, in seconds of the engine's clock. O(1)."""
    return -kept


Reason = Literal["budget", "unfinished", "shared", "uncached"]
"""Why something is not kept: the budget is spent; it was not computed so far; its last page is also
a fork's; nothing of it is left in the cache."""


class KeepCounts(msgspec.Struct):
    """What has become of what was to be kept, of all accounts so far."""

    refused: dict[Reason, int] = {}
    """Requests of which not all that they marked is kept."""
    refreshed: int = 0
    """Hits that began times anew."""
    expired: int = 0
    """Pages whose time was over before anybody came back."""

    def refuse(self, reason: Reason) -> None:
        """Of one request not all is kept. O(1)."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def go_on(self, before: KeepCounts) -> None:
        """Count on from what there was ``before``. O(reasons)."""
        self.refused, self.refreshed = dict(before.refused), before.refreshed
        self.expired = before.expired


class KeptPages:
    """How many pages of one account are kept until when.

    Args:
        counts: Are told of what is over.
    """

    __slots__ = ("_counts", "_ends", "_over", "_pages", "_total")

    def __init__(self, counts: KeepCounts | None = None) -> None:
        self._counts = counts or KeepCounts()
        self._pages: dict[int, int] = {}
        self._ends: list[int] = []
        """A heap of the keys."""
        self._over = 0
        """What ends by then was found to be over, and is counted no more."""
        self._total = 0

    def __bool__(self) -> bool:
        return bool(self._pages)

    def move(self, pages: int, old: int, new: int) -> None:
        """So many pages that were kept as ``old`` says are kept as ``new`` does. O(log terms)."""
        end = end_of(old)
        if old > 0 and end > self._over:
            self._pages[end] -= pages
            self._total -= pages
        end = end_of(new)
        if new > 0 and end > self._over:
            if end not in self._pages:
                self._pages[end] = 0
                heappush(self._ends, end)
            self._pages[end] += pages
            self._total += pages

    def total(self, now: int) -> int:
        """Pages that are kept. O(log terms) for each that is over."""
        self._over = max(self._over, now)
        while self._ends and self._ends[0] <= now:
            over = self._pages.pop(heappop(self._ends))
            self._total -= over
            self._counts.expired += over
        return self._total

    def by_end(self) -> dict[int, int]:
        """Pages by when they are kept no longer. O(terms)."""
        return {end: pages for end, pages in self._pages.items() if pages}


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A place in a sequence up to which it is to be kept."""

    tokens: int | None
    """From the first token on; None is all, the answer too."""
    seconds: int
    """1 to ``LONGEST``, from the end of the request on, and again from each hit."""


class Keeping(msgspec.Struct, frozen=True, array_like=True):
    """What a request says of what it leaves in the cache."""

    marks: tuple[Mark, ...] = ()
    session: str = ""
    """The name of the conversation that it is a turn of; empty for none."""
    last: bool = False
    """Whether that ends with it."""
    next_in: int | None = None
    """Seconds from its end on after which the next request is expected that goes on from it."""
    turn: str = ""
    """A name of its own, where others may go on from it; empty for none."""
    owned: bool = False
    """Whether all of the conversation is its own to let go of, also what was there before, and kept
    for its sake alone: when it ends, what stays is kept as those want it who go on from it."""

    def __bool__(self) -> bool:
        return bool(self.marks or self.session or self.turn or self.next_in is not None)


class Kept(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of a request's marks."""

    status: Literal["granted", "partial", "refused"]
    tokens: int
    """Tokens that are kept now, from the first one on."""
