"""The order in which cold leaves are evicted: kept at every change, never rebuilt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from radixserve.cache.tree import Node

Entry = tuple[int, int, int, "Node"]


class EvictionOrder:
    """The unpinned leaves, coldest first; among equally cold ones the deepest first.

    Whoever changes ``last_use`` or ``end`` of a leaf takes it out before and puts it back after.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: SortedList[Entry] = SortedList()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, leaf: Node) -> None:
        """O(log leaves)."""
        self._entries.add(_entry(leaf))

    def remove(self, leaf: Node) -> None:
        """O(log leaves).

        Raises:
            ValueError: the leaf is not in the order.
        """
        self._entries.remove(_entry(leaf))

    def coldest(self) -> Node:
        """The leaf to evict next. O(1).

        Raises:
            IndexError: nothing can be evicted.
        """
        return self._entries[0][3]

    def leaves(self) -> list[Node]:
        """All of them, coldest first. O(leaves)."""
        return [entry[3] for entry in self._entries]

    def sound(self) -> bool:
        """Whether every leaf stands where its present age and depth put it. O(leaves)."""
        return all(entry == _entry(entry[3]) for entry in self._entries) and all(
            first < second
            for first, second in zip(self._entries, list(self._entries)[1:], strict=False)
        )


def _entry(leaf: Node) -> Entry:
    # The serial number makes entries unique, so that two nodes are never compared.
    return (leaf.last_use, -leaf.end, leaf.serial, leaf)
