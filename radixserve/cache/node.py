"""What the radix tree is made of.

Children stand in the order of their keys, of which no two begin with the same block: growing or
trimming a leaf never touches its parent.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from radixserve.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from radixserve.cache.quota import Account

Tokens = bytes | bytearray
_KEY = attrgetter("key")


class Node:
    """An edge of the tree and the point at its end.

    ``pins = leases anchored here + pinned children``. ``end`` is the depth of its end in tokens.
    """

    __slots__ = (
        "account",
        "attached",
        "children",
        "end",
        "hits",
        "kept",
        "key",
        "last_use",
        "newcomer",
        "pages",
        "parent",
        "pins",
    )

    def __init__(
        self,
        key: Tokens,
        pages: array[int],
        parent: Node | None,
        account: Account,
        *,
        end: int,
    ):
        self.account = account
        """Whose pages these are."""
        self.key = key
        """Bytes, which take less memory, until ``buffer`` is asked for."""
        self.pages = pages
        self.parent = parent
        self.end = end
        self.children: list[Node] | None = None
        self.pins = 0
        self.last_use = 0
        self.hits = 0
        self.kept = 0
        """How long it stays before others; see ``radixserve.cache.keeping``."""
        self.newcomer = 0
        """Pages at its end that go before what is young, see ``radixserve.cache.admission``."""
        self.attached = True
        """False once a purge has cut it off: nobody can find it any more."""

    @property
    def start(self) -> int:
        """The depth of its beginning, in tokens. O(1)."""
        return self.end - len(self.key) // TOKEN_BYTES

    def buffer(self) -> bytearray:
        """The key, to be changed in place. O(1), and O(length of the key) the first time."""
        if isinstance(self.key, bytes):
            self.key = bytearray(self.key)
        return self.key

    def index(self, key: Tokens) -> int:
        """Where among the children ``key`` stands, or one that begins with it. O(log children)."""
        return bisect_left(self.children, key, key=_KEY) if self.children else 0

    def child(self, key: Tokens) -> Node | None:
        """The child whose key begins with ``key``, at most a block. O(log children)."""
        if not self.children:
            return None
        place = bisect_left(self.children, key, key=_KEY)
        if place == len(self.children) or not self.children[place].key.startswith(key):
            return None
        return self.children[place]

    def share_newcomer(self, upper: Node) -> None:
        """``upper`` is the part that a split took off: a newcomer's pages are at the end. O(1)."""
        upper.newcomer = max(0, self.newcomer - len(self.pages))
        self.newcomer -= upper.newcomer

    def joined_newcomer(self, above: Node) -> int:
        """Pages of a newcomer at its end once ``above`` is joined to it. O(1)."""
        return self.newcomer + (above.newcomer if self.newcomer == len(self.pages) else 0)


class Root(Node):
    """Where a namespace begins: an empty edge above all of its prefixes.

    Below a public prefix, ``above`` is the node at its end. It is no parent: a root stands among
    nobody's children, so that namespaces never meet.
    """

    __slots__ = ("above", "namespace", "prefix")

    def __init__(
        self,
        namespace: bytes,
        account: Account,
        *,
        above: Node | None = None,
        prefix: bytes = b"",
    ):
        end = 0 if above is None else above.end
        super().__init__(b"", array("i"), None, account, end=end)
        self.namespace = namespace
        self.above = above
        self.prefix = prefix
        """The tokens of the public prefix."""


def upper(node: Node) -> Node | None:
    """The node that ends where ``node`` begins, across the end of a public prefix too. O(1)."""
    if node.parent is None and isinstance(node, Root):
        return node.above
    return node.parent


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


def common_blocks(node: Node, tokens: Tokens, at: int, stop: int, block: int) -> int:
    """Bytes of whole blocks of ``block`` bytes that ``node`` has in common with
    ``tokens[at:stop]``."""
    common = common_head(node.key, tokens, at, stop)
    return common - common % block


def nearest(node: Node, tokens: Tokens, at: int, stop: int) -> tuple[Node | None, int]:
    """The child that has the longest head in common with ``tokens[at:stop]``, and its bytes.

    In a sorted list the longest common head is always with a neighbour of the place where the
    tokens themselves would stand. O(log children + block).
    """
    if not node.children or at >= stop:
        return None, 0
    place = node.index(tokens[at:stop])
    best, length = None, 0
    for child in node.children[max(0, place - 1) : place + 1]:
        common = common_tokens(child, tokens, at, stop)
        if common > length:
            best, length = child, common
    return best, length


def page_row(anchor: Node, private: array[int]) -> array[int]:
    """The pages from the root to the end of ``anchor``, then the private ones. O(edges + pages)."""
    parts = [private]
    node: Node | None = anchor
    while node is not None:
        parts.append(node.pages)
        node = node.parent or upper(node)
    parts.reverse()
    return array("i", b"".join(parts))


def walk(root: Node) -> Iterator[Node]:
    """Every node from ``root`` down, parents first, without recursion, but not what hangs below
    public prefixes. O(nodes)."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        if node.children is not None:
            stack.extend(node.children)
