"""The order in which a tenant's cold leaves are evicted: kept at every change, never rebuilt."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from sortedcontainers import SortedKeyList

from radixserve.cache.terms import end_of

if TYPE_CHECKING:
    from radixserve.cache.node import Node


class EvictionOrder:
    """The unpinned leaves: those that nobody comes back for, then by age, coldest first, among
    equally cold ones the deepest; at last what is kept, first what is so for the shortest time.

    Whoever changes ``last_use``, ``end`` or ``kept`` of a leaf takes it out before and puts it back
    after.
    """

    __slots__ = ("_done", "_kept", "_leaves", "_newcomers")

    def __init__(self) -> None:
        self._leaves: SortedKeyList[Node, int] = SortedKeyList(key=_place)
        # Most tenants never have any of these.
        self._done: SortedKeyList[Node, int] | None = None
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
        (self._apart(leaf.kept) if leaf.kept else self._leaves).remove(leaf)
        if leaf.newcomer and not leaf.kept and self._newcomers is not None:
            self._newcomers.remove(leaf)

    def pop(self, last_use: int, now: int = 0, old: int | None = None) -> Node | None:
        """Take out the first leaf that was not in use after ``last_use``; at ``now``, in seconds of
        the engine's clock, what was kept until then is kept no longer. Of those that go by age,
        what was in use after ``old`` goes after newcomers. O(log leaves)."""
        leaves, kept, newcomers = self._leaves, self._kept, self._newcomers
        while kept and end_of(kept[0].kept) <= now:
            self._set_free(kept.pop(0))
        if self._done and (leaf := _take(self._done, last_use)) is not None:
            return leaf
        if leaves and leaves[0].last_use <= last_use:
            young = old is not None and leaves[0].last_use > old
            leaf = newcomers[0] if young and newcomers else leaves[0]
            # A step in flight may still read the newcomer.
            leaf = leaf if leaf.last_use <= last_use else leaves[0]
            self.remove(leaf)
            return leaf
        return _take(kept, last_use) if kept else None

    def coldest(self) -> int | None:
        """When the coldest leaf that goes by age was last in use. O(1)."""
        return self._leaves[0].last_use if self._leaves else None

    def leaves(self) -> list[Node]:
        """All of them, in that order. O(leaves)."""
        return [*(self._done or ()), *self._leaves, *(self._kept or ())]

    def sound(self) -> bool:
        """Whether every leaf stands where it has to now. O(leaves log leaves)."""
        if list(self._newcomers or ()) != [leaf for leaf in self._leaves if leaf.newcomer]:
            return False
        lists = [each for each in (self._done, self._leaves, self._kept) if each is not None]
        return all(
            all(leaf in each for leaf in each)
            and all(each.key(first) < each.key(second) for first, second in pairwise(each))
            for each in lists
        ) and [(leaf.kept > 0) - (leaf.kept < 0) for leaf in self.leaves()] == [
            *[-1] * len(self._done or ()),
            *[0] * len(self._leaves),
            *[1] * len(self._kept or ()),
        ]

    # Below here: the parts of the above

    def _apart(self, kept: int) -> SortedKeyList[Node, int]:
        if kept < 0:
            if self._done is None:
                self._done = SortedKeyList(key=_place)
            return self._done
        if self._kept is None:
            self._kept = SortedKeyList(key=_kept_place)
        return self._kept

    def _set_free(self, leaf: Node) -> None:
        leaf.account.kept.move(len(leaf.pages), leaf.kept, 0)
        leaf.kept = 0
        self.add(leaf)


def _take(leaves: SortedKeyList[Node, int], last_use: int) -> Node | None:
    """The first that is old enough. Those that are not were let go of a step ago, and are few."""
    for place, leaf in enumerate(leaves):
        if leaf.last_use <= last_use:
            del leaves[place]
            found: Node = leaf
            return found
    return None


def _place(leaf: Node) -> int:
    """Age, then depth, then the serial number, which makes places unique.

    One integer, since the order keeps it for every leaf: a tuple would take three times the memory.
    """
    return (leaf.last_use << 96) - (leaf.end << 48) + leaf.serial


def _kept_place(leaf: Node) -> int:
    """By when it is kept no longer, before all that ``_place`` goes by."""
    return (leaf.kept << 144) + _place(leaf)
