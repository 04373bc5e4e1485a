"""All prompts of a trace as one radix tree, made before anything is replayed.

Replays differ in what they keep, not in who shares what with whom: a policy needs the length of
each node and the path of each prompt, and never compares blocks again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from radixserve.cache.node import common_head

ID_BYTES = array("q").itemsize


class Node:
    """A run of blocks that are always used together up to where a prompt ends or parts."""

    __slots__ = ("children", "key", "parent", "place", "start")

    def __init__(self, key: bytes, parent: Node | None, start: int):
        self.key = key
        self.parent = parent
        self.start = start
        """Blocks above it."""
        self.children: dict[bytes, Node] = {}
        self.place = -1
        """Its index in what a replay keeps."""

    @property
    def size(self) -> int:
        """Blocks."""
        return len(self.key) // ID_BYTES


class Paths:
    """A tree for each tenant, since none finds what another one has."""

    def __init__(self) -> None:
        self._roots: dict[str, Node] = {}
        self.blocks = 0
        """Each counted once."""

    def add(self, tenant: str, ids: Sequence[int]) -> Node:
        """The node that ends where the prompt of blocks ``ids`` ends. O(blocks)."""
        packed = array("q", ids).tobytes()
        node, at = self._roots.setdefault(tenant, Node(b"", None, 0)), 0
        while at < len(packed):
            child = node.children.get(packed[at : at + ID_BYTES])
            if child is None:
                child = Node(packed[at:], node, at // ID_BYTES)
                node.children[packed[at : at + ID_BYTES]] = child
                self.blocks += child.size
                return child
            common = common_head(child.key, packed, at, len(packed))
            common -= common % ID_BYTES
            node = child if common == len(child.key) else _split(child, common)
            at += common
        return node

    def reach(self, tenant: str, ids: Sequence[int]) -> int:
        """Blocks of this prompt that others have from the front. O(blocks)."""
        packed = array("q", ids).tobytes()
        node, at = self._roots.get(tenant), 0
        while node is not None and at < len(packed):
            child = node.children.get(packed[at : at + ID_BYTES])
            if child is None:
                break
            common = common_head(child.key, packed, at, len(packed))
            common -= common % ID_BYTES
            at += common
            node = child if common == len(child.key) else None
        return at // ID_BYTES

    def nodes(self) -> Iterator[Node]:
        """All of them, in no order."""
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            if node.parent is not None:
                yield node


def _split(node: Node, at: int) -> Node:
    """A node of its own for the first ``at`` bytes. ``node`` goes on to end where it did."""
    parent = node.parent
    assert parent is not None
    upper = Node(node.key[:at], parent, node.start)
    parent.children[node.key[:ID_BYTES]] = upper
    node.key, node.parent, node.start = node.key[at:], upper, node.start + at // ID_BYTES
    upper.children[node.key[:ID_BYTES]] = node
    return upper


def path(end: Node) -> list[Node]:
    """The nodes down to ``end``, without the root. O(their number)."""
    found: list[Node] = []
    node: Node | None = end
    while node is not None and node.parent is not None:
        found.append(node)
        node = node.parent
    return found[::-1]
