"""The order in which a tenant's cold leaves are evicted: kept at every change, never rebuilt."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from sortedcontainers import SortedKeyList

if TYPE_CHECKING:
    from radixserve.cache.node import Node


class EvictionOrder:
    """The unpinned leaves, coldest first; among equally cold ones the deepest first.

    Whoever changes ``last_use`` or ``end`` of a leaf takes it out before and puts it back after.
    """

    __slots__ = ("_leaves",)

    def __init__(self) -> None:
        self._leaves: SortedKeyList[Node, int] = SortedKeyList(key=_place)

    def add(self, leaf: Node) -> None:
        """O(log leaves)."""
        self._leaves.add(leaf)

    def remove(self, leaf: Node) -> None:
        """O(log leaves).

        Raises:
            ValueError: the leaf is not in the order.
        """
        self._leaves.remove(leaf)

    def pop(self, last_use: int) -> Node | None:
        """Take out the coldest leaf, unless it was in use after ``last_use``. O(log leaves)."""
        leaves = self._leaves
        if not leaves or leaves[0].last_use > last_use:
            return None
        leaf: Node = leaves.pop(0)
        return leaf

    def leaves(self) -> list[Node]:
        """All of them, coldest first. O(leaves)."""
        return list(self._leaves)

    def sound(self) -> bool:
        """Whether every leaf stands where its age and depth put it now. O(leaves log leaves)."""
        leaves = self.leaves()
        return all(leaf in self._leaves for leaf in leaves) and all(
            _place(first) < _place(second) for first, second in pairwise(leaves)
        )


def _place(leaf: Node) -> int:
    """Age, then depth, then the serial number, which makes places unique.

    One integer, since the order keeps it for every leaf: a tuple would take three times the memory.
    """
    return (leaf.last_use << 96) - (leaf.end << 48) + leaf.serial
