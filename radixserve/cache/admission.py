"""Whether a newcomer is worth what would have to go for it.

Under pressure the order of age fails: what is coldest is what is about to be used again, and goes
just before. Then it is better to keep some of it until it is used, and let newcomers pass by.

What is *young* was used within the ``patience``. Who needs pages takes them

1. from what is not young, the coldest first;
2. from *newcomers*, those that came first;
3. from what is young, the coldest first.

Pages of the kinds 2 and 3 are owed: when their taker ends, so many at its own end become a
newcomer, unless it found a good part of its prompt: who has come back is none. So newcomers take
from each other what requests need while they run, and all else stays until it is used again or
young no more. Nobody is refused or waits for it, and while the coldest is not young, the order is
that of age.

How long the patience is follows from how soon things are used again. Let F(t) be the share of pages
that are used again within t, and A(t) the seconds that a page is kept on average if it goes at t. A
newcomer costs A for F. If the cache keeps everything for the same time, as the order of age does,
it sits on the curve (A, F); where this curve hangs below its upper hull, keeping some for as long
as the right end of the hull's edge, and others not at all, hits more. That right end is the
patience, if what is gained is worth it; else there is none, and the order is that of age.

All of this is a tenant's own: what it owes are pages of its own, and its patience is learned from
its own, so that nothing of what others ask for changes what of its pages goes first.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve.cache.clock import StepClock
    from radixserve.cache.lease import Lease
    from radixserve.cache.node import Node
    from radixserve.cache.quota import Account

FIRST = 15.0
"""Seconds of patience until something is known."""
LONGEST = 30.0
"""Seconds of patience at most: what is predicted for later ages is too often wrong."""
SHORTEST, RATIO, BINS = 0.5, 1.15, 56
"""Ages are counted in bins up to 0.5, 0.575, ... 1,090 seconds."""
ENDS = [SHORTEST * RATIO**step for step in range(BINS)]
LOG = math.log(RATIO)
KNOWN = 0.25
"""Of its tokens, so many has somebody found who has come back."""
GAIN = 0.02
"""Of all pages, so many more have to be used again, by what is known, for newcomers to pass by."""
MEMORY = 64
"""Counts are halved whenever the whole pool has been used again or evicted so many times."""

Point = tuple[float, float, float]
"""A(t), F(t) and t."""


class Reuse:
    """After how long pages are used again: what is known from hits and evictions.

    Args:
        pages: of the pool.
    """

    __slots__ = (
        "_ages",
        "_every",
        "_gone",
        "_least",
        "_most",
        "_news",
        "_used",
        "_weight",
        "patience",
    )

    def __init__(self, pages: int):
        self._used = [0.0] * BINS
        self._gone = [0.0] * BINS
        self._ages = self._weight = self._news = 0.0
        self._most = float(MEMORY * pages)
        self._every = pages / 8
        self._least = float(pages)
        self.patience = FIRST
        """Seconds."""

    def used(self, age: float, pages: int) -> None:
        """So many pages were used again ``age`` seconds after they were used. O(1) amortized."""
        self._used[_bin(age)] += pages
        self._count(age, pages)

    def gone(self, age: float, pages: int) -> None:
        """So many were evicted that had not been used for ``age`` seconds. O(1) amortized."""
        self._gone[_bin(age)] += pages
        self._count(age, pages)

    def curve(self) -> list[Point]:
        """``(A(t), F(t), t)`` for growing ``t``, as far as enough pages got so old. O(bins).

        What is evicted says only that it was not used until then (Kaplan and Meier, 1958).
        """
        left = self._weight
        least = left / 500
        kept, used, start = 0.0, 0.0, 0.0
        points = [(0.0, 0.0, 0.0)]
        unused = 1.0
        for number, end in enumerate(ENDS[:-1]):
            exposed = left - self._gone[number] / (2 if number else 1)
            if left <= least or exposed <= 0:
                break
            now = unused * min(1.0, self._used[number] / exposed)
            used += now
            kept += (end - start) * (unused - now / 2)
            unused -= now
            left -= self._used[number] + self._gone[number]
            start = end
            points.append((kept, used, end))
        return points

    def _count(self, age: float, pages: int) -> None:
        self._ages += age * pages
        self._weight += pages
        self._news += pages
        if self._weight > self._most:
            self._used = [each / 2 for each in self._used]
            self._gone = [each / 2 for each in self._gone]
            self._ages /= 2
            self._weight /= 2
        if self._news > self._every and self._weight > self._least:
            self._news = 0.0
            self.patience = self._choose()

    def _choose(self) -> float:
        """The right end of the edge of the hull above the time for which pages stay now."""
        curve = self.curve()
        hull: list[Point] = []
        for point in curve:
            while len(hull) > 1 and _hangs(hull[-2], hull[-1], point):
                hull.pop()
            hull.append(point)
        stay = self._ages / self._weight
        above, until = _at(hull, stay)
        gain = above - _at(curve, stay)[0]
        return min(until, LONGEST) if gain >= GAIN else 0.0


class Admission:
    """Which leaves are young.

    Args:
        pages: of the pool.
    """

    __slots__ = ("_clock", "_pages")

    def __init__(self, pages: int, clock: StepClock):
        self._clock = clock
        self._pages = pages

    def old(self, account: Account) -> int:
        """What ``account`` last used in this step or before is not young. O(log ticks)."""
        return self._clock.last_before(self._reuse(account).patience)

    def gone(self, account: Account, last_use: int, pages: int) -> None:
        """So many of ``account`` were evicted that were last used in this step. O(log ticks)."""
        self._reuse(account).gone(self._clock.age(last_use), pages)

    def found(self, anchor: Node) -> None:
        """A match ends in ``anchor``, which nobody held: learn from its age, if it ends a branch.
        What many continue is used so often that it tells nothing of what goes and stays."""
        if anchor.pages and (anchor.children is None or len(anchor.children) == 1):
            age = self._clock.age(anchor.last_use)
            self._reuse(anchor.account).used(age, len(anchor.pages))

    def pay(self, lease: Lease, leaf: Node | None) -> None:
        """``lease`` ends, which may owe pages: so many at its end become a newcomer, with what was
        one before, unless nothing is young; and ``leaf``, the open block that it leaves, if it
        leaves one. O(log leaves)."""
        anchor = lease.anchor
        pages = lease.owed if lease.reused < KNOWN * lease.computed else 0
        if anchor.pins > 1 or not (pages or anchor.newcomer):
            return
        carried = anchor.newcomer
        if carried:
            coldest = anchor.account.order.coldest()
            if coldest is None or coldest <= self.old(anchor.account):
                carried = 0
        anchor.newcomer = min(len(anchor.pages), carried + pages)
        if leaf is not None and carried + pages:
            leaf.account.order.remove(leaf)
            leaf.newcomer = 1
            leaf.account.order.add(leaf)

    def _reuse(self, account: Account) -> Reuse:
        if account.reuse is None:
            account.reuse = Reuse(self._pages)
        return account.reuse


def _bin(age: float) -> int:
    if age < SHORTEST:
        return 0
    return min(BINS - 1, 1 + int(math.log(age / SHORTEST) / LOG))


def _at(line: list[Point], stay: float) -> tuple[float, float]:
    """F of ``line`` at A = ``stay``, and t at the end of this edge; 0, 0 beyond its end."""
    for left, right in pairwise(line):
        if right[0] >= stay:
            part = (stay - left[0]) / max(right[0] - left[0], 1e-9)
            return left[1] + part * (right[1] - left[1]), right[2]
    return 0.0, 0.0


def _hangs(left: Point, middle: Point, right: Point) -> bool:
    """Whether ``middle`` is not above the line from ``left`` to ``right``."""
    rise = (middle[1] - left[1]) * (right[0] - middle[0])
    return (right[1] - middle[1]) * (middle[0] - left[0]) >= rise
