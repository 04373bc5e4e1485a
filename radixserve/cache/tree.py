"""The radix tree: edges of whole token blocks, each with one page a block.

An *open* leaf holds the computed part of one block: it is never matched, only copied from.
"""

from __future__ import annotations

from array import array

from radixserve.cache.errors import CacheError
from radixserve.cache.keeping import forget, move_sessions, shorten_sessions, split_sessions
from radixserve.cache.node import Node, Root, Tokens, common_blocks, upper, walk
from radixserve.cache.quota import Account, Accounts
from radixserve.cache.roots import Roots
from radixserve.tokens import TOKEN_BYTES


class RadixTree:
    """Nodes, pins and eviction orders; knows nothing of leases or of the page pool."""

    __slots__ = (
        "_roots",
        "accounts",
        "block",
        "evictable",
        "hung",
        "nodes",
        "page_size",
        "pages",
        "roots",
    )

    def __init__(self, page_size: int, accounts: Accounts):
        self.page_size = page_size
        self.accounts = accounts
        self.block = page_size * TOKEN_BYTES
        """Bytes of one block."""
        self._roots = Roots()
        self.roots, self.hung = self._roots.named, self._roots.hung
        self.nodes = 0
        self.pages = 0
        """Pages of all attached nodes."""
        self.evictable = 0
        """Those of them that are not pinned."""

    def descend(self, root: Node, tokens: Tokens, stop: int) -> tuple[Node, int, Node | None, int]:
        """Follow ``tokens[:stop]`` (bytes, whole blocks) from ``root`` as far as it is known.
        Returns ``(node, at, child, common)``: the last node that matched whole, the bytes matched
        up to its end, and the child of which only the first ``common`` bytes match (or None, 0).

        O(edges · log children + bytes compared).
        """
        # Written out instead of calling ``child``: this loop is the cost of a match.
        node, at, block = root, root.end * TOKEN_BYTES, self.block
        while at < stop:
            children = node.children
            if children is None:
                break
            if len(children) == 2:
                # A fork of two ways is what a split leaves: trying both beats searching.
                other, child = children
                key = child.key
                found = tokens.startswith(key, at, stop)
                if not found:
                    child, key = other, other.key
                    found = tokens.startswith(key, at, stop)
                if found and len(key) >= block:
                    node, at = child, at + len(key)
                    continue
            first = tokens[at : at + block]
            place = node.index(first)
            if place == len(children):
                break
            child = children[place]
            key = child.key
            if not tokens.startswith(key, at, stop):
                if not key.startswith(first):
                    break
                return node, at, child, common_blocks(child, tokens, at, stop, block)
            node, at = child, at + len(key)
        return node, at, None, 0

    def reach(self, root: Root, tokens: Tokens, stop: int) -> tuple[Node, int]:
        """The end of the longest match of ``tokens[:stop]``, and its length; an edge is split where
        that ends inside it. As ``descend``, plus O(length of the key that is split)."""
        node, at, child, common = self.descend(root, tokens, stop)
        return (node, at) if child is None else (self.split(child, common), at + common)

    def is_open(self, node: Node) -> bool:
        """Whether ``node`` is an open leaf. O(1)."""
        return len(node.key) < len(node.pages) * self.block

    def root(self, namespace: bytes, account: Account) -> Root:
        """A new root for ``namespace``, which has none. O(1)."""
        root = Root(namespace, account)
        self._put(root)
        return root

    def all_roots(self) -> list[Root]:
        """What hangs below public prefixes first. O(roots)."""
        return self._roots.all()

    def hang(self, above: Node, prefix: bytes, namespace: bytes, tenant: str) -> Root:
        """The root of ``namespace`` below ``above``, the pinned end of a public prefix; made for
        ``tenant`` when it is new. O(1)."""
        root = self.hung.get((namespace, prefix))
        if root is None:
            root = Root(namespace, self.accounts.of(tenant), above=above, prefix=prefix)
            self._put(root)
        return root

    def hanging(self, node: Node) -> int:
        """How many roots hang below ``node``. O(1)."""
        return self._roots.below(node)

    def split(self, node: Node, at: int) -> Node:
        """Cut ``node`` after ``at`` bytes of its key and return the new upper part.

        The old object keeps its end, with its anchors and its place in the eviction order.
        O(length of the key).
        """
        parent = node.parent
        if parent is None or not 0 < at < len(node.key) or at % self.block:
            raise CacheError(f"cannot split a node of {len(node.key)} bytes at {at}")
        blocks = at // self.block
        end = node.start + at // TOKEN_BYTES
        upper = self._node(node.key[:at], node.pages[:blocks], parent, end=end)
        upper.pins = 1 if node.pins else 0
        upper.last_use, upper.hits, upper.kept = node.last_use, node.hits, node.kept
        self._replace(parent, node, upper)
        node.key, node.pages = node.key[at:], node.pages[blocks:]
        node.share_newcomer(upper)
        split_sessions(node, upper)
        node.parent = upper
        upper.children = [node]
        return upper

    def add(self, parent: Node, key: Tokens, pages: array[int], *, now: int) -> Node:
        """Hang a new unpinned leaf below the pinned ``parent``. O(log children + children moved).

        An open leaf that the new key begins with has become useless: the caller drops it first.
        """
        leaf = self._node(bytes(key), pages, parent, end=parent.end + len(key) // TOKEN_BYTES)
        leaf.last_use = now
        if parent.children is None:
            parent.children = []
        parent.children.insert(parent.index(key), leaf)
        self.pages += len(pages)
        self._cool(leaf.account, len(pages))
        leaf.account.order.add(leaf)
        return leaf

    def grow(self, leaf: Node, key: Tokens, pages: array[int], *, now: int) -> None:
        """Append whole blocks to a pinned leaf. O(blocks), amortised."""
        leaf.buffer().extend(key)
        leaf.pages.extend(pages)
        leaf.end += len(key) // TOKEN_BYTES
        leaf.last_use = now
        self.pages += len(pages)

    def pin(self, node: Node) -> None:
        """One more reason to keep ``node`` and all above it. O(nodes that were unpinned)."""
        if node.pins:
            node.pins += 1
            return
        if node.attached and node.children is None and node.parent is not None:
            node.account.order.remove(node)
        at: Node | None = node
        top = node
        while at is not None and not at.pins:
            at.pins = 1
            top, at = at, at.parent
        above = top.end
        if at is not None:
            at.pins += 1
            above = at.end
        elif (end := upper(top)) is not None:
            self.pin(end)
        if node.attached:
            # The end of an open leaf lies inside its page; that of any other node at a page's end.
            self._cool(node.account, above // self.page_size + -node.end // self.page_size)

    def unpin(self, node: Node, *, now: int) -> list[Node]:
        """One reason less to keep ``node``, which was in use until ``now``. Returns the cut-off
        nodes that nobody holds any more. O(nodes that become unpinned, and what joining moves).

        Raises:
            CacheError: the node is not pinned; nothing was changed.
        """
        if node.pins < 1:
            raise CacheError("a node is unpinned that is not pinned")
        # A pinned node is not in the eviction order, so its age may change in place.
        node.last_use = max(node.last_use, now)
        gone: list[Node] = []
        cold = 0
        at: Node | None = node
        while at is not None:
            parent = at.parent or upper(at)
            at.pins -= 1
            if at.pins:
                self.join(at)
                break
            if not at.attached:
                gone.append(at)
                if parent is not None:  # it may stay, and was in use as long
                    parent.last_use = max(parent.last_use, at.last_use)
                self._unlink(at)
            else:
                cold += len(at.pages)
                self._settle(at)
            if cold and (parent is None or parent.account is not at.account):
                self._cool(at.account, cold)
                cold = 0
            at = parent
        if at is not None and cold:
            self._cool(at.account, cold)
        return gone

    def trim(self, leaf: Node, count: int) -> array[int]:
        """Take up to ``count`` blocks from the end of an unpinned leaf that is out of the order; it
        goes when none is left, else back there. Returns their pages. O(blocks + log leaves)."""
        pages = leaf.pages[-count:] if count < len(leaf.pages) else leaf.pages
        self.pages -= len(pages)
        self._cool(leaf.account, -len(pages))
        if leaf.kept:
            leaf.account.kept.move(len(pages), leaf.kept, 0)
        if count < len(leaf.pages):
            del leaf.pages[-count:], leaf.buffer()[-count * self.block :]
            leaf.end -= count * self.page_size
            shorten_sessions(leaf)
            leaf.account.order.add(leaf)
        else:
            self._remove(leaf)
        return pages

    def detach(self, top: Node) -> tuple[list[int], int]:
        """Cut off ``top`` and what is below it, but for what hangs below public prefixes. What is
        pinned lives on, unfindable, until its leases end. Returns the pages that nobody holds, and
        how many are still held. O(nodes)."""
        parent = top.parent
        if isinstance(top, Root):
            self._roots.forget(top)
        elif parent is not None:
            self._take_out(parent, top)
        nodes, held = list(walk(top)), 0
        above = parent or top  # a step in flight reads it too; it is in no order now
        above.last_use = max(above.last_use, *(node.last_use for node in nodes))
        freed: list[int] = []
        for node in nodes:
            self.pages -= len(node.pages)
            node.attached = False
            if node.pins:
                held += len(node.pages)
                continue
            freed.extend(node.pages)
            self._cool(node.account, -len(node.pages))
            if node.children is None and node.parent is not None:
                node.account.order.remove(node)
        for node in nodes:
            forget(node)
            if not node.pins:
                self.nodes -= 1
                node.parent = None
            elif node.children is not None:
                node.children = [child for child in node.children if child.pins] or None
        if isinstance(top, Root) and not top.pins:
            self._unhang(top)
        elif parent is not None:
            self._settle(parent)
        return freed, held

    # Below here: the parts of the above

    def _put(self, root: Root) -> None:
        self.nodes += 1
        self._roots.put(root)

    def _node(self, key: Tokens, pages: array[int], parent: Node, *, end: int) -> Node:
        self.nodes += 1
        return Node(key, pages, parent, parent.account, end=end)

    def _cool(self, account: Account, pages: int) -> None:
        self.evictable += pages
        account.cold += pages
        self.accounts.changed.add(account)

    def _settle(self, node: Node) -> None:
        """Put a node that was just unpinned, or lost a child, where it belongs."""
        if isinstance(node, Root):
            if node.children is None and not node.pins:
                self._roots.forget(node)
                self.nodes -= 1
                self._unhang(node)
        elif node.children is None:
            if not node.pins:
                node.account.order.add(node)
        else:
            self.join(node)

    def join(self, node: Node) -> None:
        """Make one node of ``node`` and its only child, if no lease needs the seam between them.

        The child survives: it keeps its end, its anchors and its place in the order.
        """
        parent, children = node.parent, node.children
        if parent is None or children is None or len(children) != 1 or not node.attached:
            return
        child = children[0]
        if self.is_open(child) or node.pins != (1 if child.pins else 0):
            return
        if self._roots.below(node) or node.kept != child.kept:
            return
        move_sessions(node, child)
        newcomer = child.joined_newcomer(node)
        child.key, child.pages = node.key + child.key, node.pages + child.pages
        child.parent = parent
        child.hits = max(child.hits, node.hits)
        self._replace(parent, node, child)
        self.nodes -= 1
        node.parent = None  # whoever holds it still sees that it is gone
        if child.last_use < node.last_use or child.newcomer != newcomer:
            in_order = child.children is None and not child.pins and child.attached
            if in_order:
                child.account.order.remove(child)
            child.last_use = max(child.last_use, node.last_use)
            child.newcomer = newcomer
            if in_order:
                child.account.order.add(child)

    def _remove(self, leaf: Node) -> None:
        """Unlink a leaf; its parent becomes as old as the younger of the two."""
        parent = leaf.parent
        if parent is None:
            raise CacheError("a root is removed like a leaf")
        self._unlink(leaf)
        move_sessions(leaf, parent)
        parent.last_use = max(parent.last_use, leaf.last_use)
        self._settle(parent)

    def _unlink(self, node: Node) -> None:
        parent = node.parent
        self.nodes -= 1
        if isinstance(node, Root):
            self._unhang(node)
        elif parent is not None and (node.attached or node in (parent.children or ())):
            self._take_out(parent, node)  # what was cut off at its top has been taken out before
        node.parent = None

    def _take_out(self, parent: Node, child: Node) -> None:
        """Take ``child`` out of the children of ``parent``."""
        if parent.children is None:
            return
        del parent.children[self._place(parent, child)]
        if not parent.children and not self._roots.below(parent):
            parent.children = None

    def _unhang(self, root: Root) -> None:
        """Nothing is left below ``root``: the end of its public prefix may go now too."""
        above = self._roots.unhang(root)
        if above is None:
            return
        self.accounts.changed.add(above.account)
        if above.attached:
            self._settle(above)

    def _replace(self, parent: Node, old: Node, new: Node) -> None:
        place = self._place(parent, old)
        assert parent.children is not None
        parent.children[place] = new

    def _place(self, parent: Node, child: Node) -> int:
        place = parent.index(child.key[: self.block])
        if parent.children is None or parent.children[place] is not child:
            raise CacheError("a node does not stand where its key says")
        return place
