"""What the radix tree is made of.

A node's ``key`` is a mutable buffer that also stands in its parent's sorted list of keys, so that
growing or trimming a leaf never touches the parent.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from radixserve.tokens import TOKEN_BYTES

Tokens = bytes | bytearray


class Node:
    """An edge of the tree and the point at its end.

    ``pins = leases anchored here + pinned children``. ``end`` is the depth of its end in tokens.
    """

    __slots__ = (
        "attached",
        "children",
        "end",
        "hits",
        "key",
        "keys",
        "last_use",
        "pages",
        "parent",
        "pins",
        "serial",
    )

    def __init__(
        self, key: bytearray, pages: array[int], parent: Node | None, *, end: int, serial: int
    ):
        self.key = key
        self.pages = pages
        self.parent = parent
        self.end = end
        self.serial = serial
        self.keys: list[bytearray] | None = None
        """The children's keys in byte order: the very objects that the children hold."""
        self.children: list[Node] | None = None
        self.pins = 0
        self.last_use = 0
        self.hits = 0
        self.attached = True
        """False once a purge has cut it off: nobody can find it any more."""

    def index(self, block: Tokens) -> int:
        """Where among the children a key that begins with ``block`` stands. O(log children)."""
        return bisect_left(self.keys, block) if self.keys else 0

    def child(self, block: Tokens) -> Node | None:
        """The child whose key begins with the whole ``block``. O(log children)."""
        if not self.keys or self.children is None:
            return None
        at = bisect_left(self.keys, block)
        if at < len(self.keys) and self.keys[at].startswith(block):
            return self.children[at]
        return None


class Root(Node):
    """Where a namespace begins: an empty edge above all of its prefixes."""

    __slots__ = ("namespace", "tenant")

    def __init__(self, namespace: bytes, tenant: str, *, serial: int):
        super().__init__(bytearray(), array("i"), None, end=0, serial=serial)
        self.namespace = namespace
        self.tenant = tenant
        """Whose pages those below are."""


def common_head(key: Tokens, tokens: Tokens, at: int, stop: int) -> int:
    """Bytes that ``key`` has in common with ``tokens[at:stop]``, by halving. O(bytes compared)."""
    low, high = 0, min(len(key), stop - at)
    while low < high:
        middle = (low + high + 1) // 2
        if tokens.startswith(key[low:middle], at + low):
            low = middle
        else:
            high = middle - 1
    return low


def common_tokens(node: Node, tokens: Tokens, at: int, stop: int) -> int:
    """Bytes of whole tokens that ``node`` has in common with ``tokens[at:stop]``."""
    common = common_head(node.key, tokens, at, stop)
    return common - common % TOKEN_BYTES


def walk(root: Node) -> Iterator[Node]:
    """Every node from ``root`` down, parents first, without recursion. O(nodes)."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        if node.children is not None:
            stack.extend(node.children)
