"""The order in which a tenant's cold leaves are evicted: kept at every change, never rebuilt."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from sortedcontainers import SortedKeyList

from radixserve.cache.terms import DONE, due, end_of

if TYPE_CHECKING:
    from radixserve.cache.clock import StepClock
    from radixserve.cache.node import Node

SLACK = 30
"""Seconds beyond the expected time after which nobody is expected any more."""
UNUSED = 10
"""Seconds for which what nothing is known of is taken to stay unused at least."""


class EvictionOrder:
    """The unpinned leaves, in the order in which they go

    1. those that nobody comes back for;
    2. by age, the coldest first, among equally cold ones the deepest; and those that somebody is
       expected to come back for, the latest first. What was not used for some time is taken to stay
       unused for as long again and ``UNUSED`` more: of the first of either, the one goes that would
       be used later. Who is late by ``SLACK`` is not waited for: that goes by age too;
    3. what is kept, first what is so for the shortest time.

    Whoever changes ``last_use``, ``end`` or ``kept`` of a leaf takes it out before and puts it back
    after.
    """

    __slots__ = ("_awaited", "_kept", "_late", "_leaves", "_newcomers")

    def __init__(self) -> None:
        self._leaves: SortedKeyList[Node, int] = SortedKeyList(key=_place)
        # Most tenants never have any of these.
        self._awaited: SortedKeyList[Node, int] | None = None
        """With those that nobody comes back for, which are awaited last of all."""
        self._late: SortedKeyList[Node, int] | None = None
        """Those that nobody waits for any more, though somebody was expected."""
        self._kept: SortedKeyList[Node, int] | None = None
        # Those of the leaves that end in pages of newcomers.
        self._newcomers: SortedKeyList[Node, int] | None = None

    def add(self, leaf: Node) -> None:
        """O(log leaves)."""
        (self._apart(leaf.kept) if leaf.kept else self._leaves).add(leaf)
        if leaf.newcomer and not leaf.kept:
            if self._newcomers is None:
                self._newcomers = SortedKeyList(key=_place)
            self._newcomers.add(leaf)

    def remove(self, leaf: Node) -> None:
        """O(log leaves).

        Raises:
            ValueError: the leaf is not in the order.
        """
        if leaf.kept < 0 and self._late and leaf in self._late:
            self._late.remove(leaf)
            return
        (self._apart(leaf.kept) if leaf.kept else self._leaves).remove(leaf)
        if leaf.newcomer and not leaf.kept and self._newcomers is not None:
            self._newcomers.remove(leaf)

    def pop(self, last_use: int, clock: StepClock, old: int | None = None) -> Node | None:
        """Take out the first leaf that was not in use after ``last_use``. What was kept until now
        is kept no longer. Of those that go by age, what was in use after ``old`` goes after
        newcomers. O(log leaves), amortized."""
        kept, awaited = self._kept, self._awaited
        while kept and end_of(kept[0].kept) <= clock.now:
            self._set_free(kept.pop(0))
        while awaited and due(awaited[-1].kept) + SLACK <= clock.now:
            if self._late is None:
                self._late = SortedKeyList(key=_place)
            self._late.add(awaited.pop())
        leaf = self._coldest()
        if leaf is not None and leaf.last_use > last_use:
            leaf = None
        last = _first(awaited, last_use) if awaited else None
        if last is not None and (leaf is None or _later(last, leaf, clock)):
            leaf = last
        elif leaf is not None and old is not None and leaf.last_use > old and self._newcomers:
            # A step in flight may still read the newcomer.
            leaf = self._newcomers[0] if self._newcomers[0].last_use <= last_use else leaf
        elif leaf is None and kept:
            leaf = _first(kept, last_use)
        if leaf is not None:
            self.remove(leaf)
        return leaf

    def coldest(self) -> int | None:
        """When the coldest leaf that goes by age was last in use. O(1)."""
        leaf = self._coldest()
        return None if leaf is None else leaf.last_use

    def leaves(self) -> list[Node]:
        """All of them; of 2., those that are awaited come first, or were. O(leaves)."""
        lists = (self._awaited, self._late, self._leaves, self._kept)
        return [leaf for each in lists for leaf in each or ()]

    def sound(self) -> bool:
        """Whether every leaf stands where it has to now. O(leaves log leaves)."""
        if list(self._newcomers or ()) != [leaf for leaf in self._leaves if leaf.newcomer]:
            return False
        signs = ((self._awaited, -1), (self._late, -1), (self._leaves, 0), (self._kept, 1))
        return all(
            all(leaf in each and (leaf.kept > 0) - (leaf.kept < 0) == sign for leaf in each)
            and all(each.key(first) < each.key(second) for first, second in pairwise(each))
            for each, sign in signs
            if each is not None
        )

    # Below here: the parts of the above

    def _apart(self, kept: int) -> SortedKeyList[Node, int]:
        if kept < 0:
            if self._awaited is None:
                self._awaited = SortedKeyList(key=_kept_place)
            return self._awaited
        if self._kept is None:
            self._kept = SortedKeyList(key=_kept_place)
        return self._kept

    def _coldest(self) -> Node | None:
        """The first of those that go by age."""
        leaf = self._leaves[0] if self._leaves else None
        if self._late and (leaf is None or _place(self._late[0]) < _place(leaf)):
            leaf = self._late[0]
        return leaf

    def _set_free(self, leaf: Node) -> None:
        leaf.account.kept.move(len(leaf.pages), leaf.kept, 0)
        leaf.kept = 0
        self.add(leaf)


def _first(leaves: SortedKeyList[Node, int], last_use: int) -> Node | None:
    """The first that is old enough. Those that are not were let go of a step ago, and are few."""
    return next((leaf for leaf in leaves if leaf.last_use <= last_use), None)


def _later(awaited: Node, leaf: Node, clock: StepClock) -> bool:
    """Whether ``awaited`` will be used later than ``leaf``, which nothing is known of."""
    if awaited.kept == DONE:
        return True
    return due(awaited.kept) - clock.now > UNUSED + clock.age(leaf.last_use)


def _place(leaf: Node) -> int:
    """Age, then depth, then the last page, which makes places unique.

    One integer, since the order keeps it for every leaf: a tuple would take three times the memory.
    """
    return (leaf.last_use << 64) - (leaf.end << 32) + leaf.pages[-1]


def _kept_place(leaf: Node) -> int:
    """By when it is kept no longer, before all that ``_place`` goes by."""
    return (leaf.kept << 112) + _place(leaf)
