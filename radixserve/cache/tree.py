"""The radix tree: edges of whole token blocks, each with one page a block.

An *open* leaf holds the computed part of one block: it is never matched, only copied from.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

from radixserve.cache.errors import CacheError
from radixserve.cache.eviction import EvictionOrder
from radixserve.cache.node import Node, Root, Tokens, common_head, common_tokens, walk
from radixserve.tenant import OPEN
from radixserve.tokens import TOKEN_BYTES


class RadixTree:
    """Nodes, pins and the eviction order; knows nothing of leases or of the page pool."""

    __slots__ = ("_serial", "block", "evictable", "nodes", "order", "page_size", "pages", "roots")

    def __init__(self, page_size: int):
        self.page_size = page_size
        self.block = page_size * TOKEN_BYTES
        """Bytes of one block."""
        self.roots: dict[bytes, Root] = {}
        """One a namespace, so that namespaces never meet among one node's neighbours."""
        self.order = EvictionOrder()
        self.nodes = 0
        self.pages = 0
        """Pages of all attached nodes."""
        self.evictable = 0
        """Those of them that are not pinned."""
        self._serial = 0

    # Finding

    def descend(self, root: Node, tokens: Tokens, stop: int) -> tuple[Node, int, Node | None, int]:
        """Follow ``tokens[:stop]`` (bytes, whole blocks) from ``root`` as far as it is known.

        Returns ``(node, at, child, common)``: the last node that matched whole, the bytes matched
        up to its end, and the child of which only the first ``common`` bytes match (or None, 0).

        O(edges · log children + bytes compared).
        """
        # Written out instead of calling ``child``: this loop is the cost of a match.
        node, at, block = root, 0, self.block
        while at < stop:
            keys, children = node.keys, node.children
            if keys is None or children is None:
                break
            if len(keys) == 2:
                # A fork of two ways is what a split leaves: trying both beats searching.
                place = 1 if tokens.startswith(keys[1], at, stop) else 0
                key = keys[place]
                if (place or tokens.startswith(key, at, stop)) and len(key) >= block:
                    node, at = children[place], at + len(key)
                    continue
            first = tokens[at : at + block]
            place = bisect_left(keys, first)
            if place == len(keys):
                break
            key, child = keys[place], children[place]
            if not tokens.startswith(key, at, stop):
                if not key.startswith(first):
                    break
                return node, at, child, self.common_blocks(child, tokens, at, stop)
            node, at = child, at + len(key)
        return node, at, None, 0

    def nearest(self, node: Node, tokens: Tokens, at: int, stop: int) -> tuple[Node | None, int]:
        """The child that has the longest head in common with ``tokens[at:stop]``, and its bytes.

        In a sorted list the longest common head is always with a neighbour of the place where the
        tokens themselves would stand. O(log children + block).
        """
        if not node.keys or node.children is None or at >= stop:
            return None, 0
        place = bisect_left(node.keys, tokens[at:stop])
        best, length = None, 0
        for index in (place - 1, place):
            if 0 <= index < len(node.keys):
                common = common_tokens(node.children[index], tokens, at, stop)
                if common > length:
                    best, length = node.children[index], common
        return best, length

    def common_blocks(self, node: Node, tokens: Tokens, at: int, stop: int) -> int:
        """Bytes of whole blocks that ``node`` has in common with ``tokens[at:stop]``."""
        common = common_head(node.key, tokens, at, stop)
        return common - common % self.block

    def is_open(self, node: Node) -> bool:
        """Whether ``node`` is an open leaf. O(1)."""
        return len(node.key) < len(node.pages) * self.block

    # Growing

    def root(self, namespace: bytes, tenant: str = OPEN) -> Root:
        """The root of ``namespace``, made for ``tenant`` when it is new. O(1)."""
        root = self.roots.get(namespace)
        if root is None:
            root = Root(namespace, tenant, serial=self._count())
            self.roots[namespace] = root
        return root

    def split(self, node: Node, at: int) -> Node:
        """Cut ``node`` after ``at`` bytes of its key and return the new upper part.

        The old object keeps its end, with its anchors and its place in the eviction order.
        O(length of the key).
        """
        parent = node.parent
        if parent is None or not 0 < at < len(node.key) or at % self.block:
            raise CacheError(f"cannot split a node of {len(node.key)} bytes at {at}")
        blocks = at // self.block
        end = node.end - (len(node.key) - at) // TOKEN_BYTES
        upper = self._node(node.key[:at], node.pages[:blocks], parent, end=end)
        upper.pins = 1 if node.pins else 0
        upper.last_use = node.last_use
        upper.hits = node.hits
        self._replace(parent, node, upper)
        node.key = node.key[at:]
        node.pages = node.pages[blocks:]
        node.parent = upper
        upper.keys = [node.key]
        upper.children = [node]
        return upper

    def add(self, parent: Node, key: Tokens, pages: array[int], *, now: int) -> Node:
        """Hang a new unpinned leaf below the pinned ``parent``. O(log children + children moved).

        An open leaf that the new key begins with has become useless: the caller drops it first.
        """
        leaf = self._node(bytearray(key), pages, parent, end=parent.end + len(key) // TOKEN_BYTES)
        leaf.last_use = now
        if parent.keys is None or parent.children is None:
            parent.keys, parent.children = [], []
        place = parent.index(key)
        parent.keys.insert(place, leaf.key)
        parent.children.insert(place, leaf)
        self.pages += len(pages)
        self.evictable += len(pages)
        self.order.add(leaf)
        return leaf

    def grow(self, leaf: Node, key: Tokens, pages: array[int], *, now: int) -> None:
        """Append whole blocks to a pinned leaf. O(blocks), amortised."""
        leaf.key += key
        leaf.pages.extend(pages)
        leaf.end += len(key) // TOKEN_BYTES
        leaf.last_use = now
        self.pages += len(pages)

    # Pinning

    def pin(self, node: Node) -> None:
        """One more reason to keep ``node`` and all above it. O(nodes that were unpinned)."""
        if node.pins:
            node.pins += 1
            return
        if node.attached and node.children is None and node.parent is not None:
            self.order.remove(node)
        at: Node | None = node
        while at is not None and not at.pins:
            at.pins = 1
            at = at.parent
        above = 0
        if at is not None:
            at.pins += 1
            above = at.end
        if node.attached:
            # The end of an open leaf lies inside its page; that of any other node at a page's end.
            self.evictable -= -(-node.end // self.page_size) - above // self.page_size

    def unpin(self, node: Node, *, now: int) -> list[int]:
        """One reason less to keep ``node``, which was in use until ``now``.

        O(nodes that become unpinned), and what joining chains moves.

        Returns the pages of cut-off nodes that nobody keeps any more.

        Raises:
            CacheError: the node is not pinned; nothing was changed.
        """
        if node.pins < 1:
            raise CacheError("a node is unpinned that is not pinned")
        # A pinned node is not in the eviction order, so its age may change in place.
        node.last_use = max(node.last_use, now)
        freed: list[int] = []
        at: Node | None = node
        while at is not None:
            parent = at.parent
            at.pins -= 1
            if at.pins:
                self._join(at)
                return freed
            if not at.attached:
                freed.extend(at.pages)
                self._unlink(at)
            else:
                self.evictable += len(at.pages)
                self._settle(at)
            at = parent
        return freed

    # Shrinking

    def trim(self, leaf: Node, count: int) -> array[int]:
        """Take up to ``count`` blocks from the end of an unpinned leaf; the leaf goes when none is
        left. Returns their pages. O(blocks taken + log leaves)."""
        self.order.remove(leaf)
        pages = leaf.pages[-count:] if count < len(leaf.pages) else leaf.pages
        self.pages -= len(pages)
        self.evictable -= len(pages)
        if count < len(leaf.pages):
            del leaf.pages[-count:]
            del leaf.key[-count * self.block :]
            leaf.end -= count * self.page_size
            self.order.add(leaf)
        else:
            self._remove(leaf)
        return pages

    def detach(self, namespace: bytes) -> tuple[list[int], int]:
        """Cut a namespace off. What is pinned lives on, unfindable, until its leases end.

        Returns the pages that nobody holds, and how many are still held. O(nodes).
        """
        root = self.roots.pop(namespace, None)
        if root is None:
            return [], 0
        freed: list[int] = []
        held = 0
        nodes = list(walk(root))
        for node in nodes:
            self.pages -= len(node.pages)
            node.attached = False
            if node.pins:
                held += len(node.pages)
                continue
            freed.extend(node.pages)
            self.evictable -= len(node.pages)
            if node.children is None and node.parent is not None:
                self.order.remove(node)
        for node in nodes:
            if not node.pins:
                self.nodes -= 1
                node.parent = None
            elif node.children is not None:
                node.children = [child for child in node.children if child.pins] or None
                node.keys = [child.key for child in node.children] if node.children else None
        return freed, held

    # Below here: the parts of the above

    def _count(self) -> int:
        self._serial += 1
        self.nodes += 1
        return self._serial

    def _node(self, key: bytearray, pages: array[int], parent: Node, *, end: int) -> Node:
        return Node(key, pages, parent, end=end, serial=self._count())

    def _settle(self, node: Node) -> None:
        """Put a node that was just unpinned, or lost a child, where it belongs."""
        if isinstance(node, Root):
            if node.children is None and not node.pins:
                del self.roots[node.namespace]
                self.nodes -= 1
        elif node.children is None:
            if not node.pins:
                self.order.add(node)
        else:
            self._join(node)

    def _join(self, node: Node) -> None:
        """Make one node of ``node`` and its only child, if no lease needs the seam between them.

        The child survives: it keeps its end, its anchors and its place in the order.
        """
        parent, children = node.parent, node.children
        if parent is None or children is None or len(children) != 1:
            return
        child = children[0]
        if self.is_open(child) or node.pins != (1 if child.pins else 0):
            return
        child.key = node.key + child.key
        child.pages = node.pages + child.pages
        child.parent = parent
        child.hits = max(child.hits, node.hits)
        self._replace(parent, node, child)
        self.nodes -= 1
        if child.last_use < node.last_use:
            in_order = child.children is None and not child.pins and child.attached
            if in_order:
                self.order.remove(child)
            child.last_use = node.last_use
            if in_order:
                self.order.add(child)

    def _remove(self, leaf: Node) -> None:
        """Unlink a leaf; its parent becomes as old as the younger of the two."""
        parent = leaf.parent
        if parent is None:
            raise CacheError("a root is removed like a leaf")
        self._unlink(leaf)
        parent.last_use = max(parent.last_use, leaf.last_use)
        self._settle(parent)

    def _unlink(self, node: Node) -> None:
        parent = node.parent
        self.nodes -= 1
        if parent is None or parent.keys is None or parent.children is None:
            return
        place = self._place(parent, node)
        del parent.keys[place], parent.children[place]
        if not parent.children:
            parent.keys = parent.children = None
        node.parent = None

    def _replace(self, parent: Node, old: Node, new: Node) -> None:
        place = self._place(parent, old)
        assert parent.keys is not None
        assert parent.children is not None
        parent.keys[place] = new.key
        parent.children[place] = new

    def _place(self, parent: Node, child: Node) -> int:
        place = parent.index(child.key[: self.block])
        if parent.children is None or parent.children[place] is not child:
            raise CacheError("a node does not stand where its key says")
        return place
