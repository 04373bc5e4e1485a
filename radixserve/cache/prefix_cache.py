"""The prefix cache: prompts in, leases out."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

from radixserve.cache.lease import Lease
from radixserve.cache.ledger import check
from radixserve.cache.node import Node, Tokens, common_tokens
from radixserve.cache.pages import PageCopy, PagePool
from radixserve.cache.tree import RadixTree
from radixserve.tenant import OPEN, Terms
from radixserve.tokens import TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Peek:
    """What ``acquire`` would find, in tokens."""

    blocks: int
    """Tokens in whole blocks, reused in place."""
    copied: int
    """Tokens of the next block that could be copied."""

    @property
    def tokens(self) -> int:
        return self.blocks + self.copied


@dataclass(frozen=True, slots=True)
class Purge:
    """What a purge did, in pages."""

    dropped: int
    held: int
    """Still used by running requests; they come back when those end, and nobody else sees them."""


class PrefixCache:
    """Maps token prefixes to KV pages, for one model.

    Args:
        num_pages: pages of the pool, scratch page 0 included.
        page_size: tokens a page.
        enabled: without it nothing is ever matched or kept, and leases only hand out pages.
    """

    __slots__ = ("enabled", "evicted", "leases", "page_size", "pool", "terms", "tree")

    def __init__(self, num_pages: int, page_size: int, *, enabled: bool = True):
        self.page_size = page_size
        self.enabled = enabled
        self.pool = PagePool(num_pages)
        self.tree = RadixTree(page_size)
        self.terms: dict[str, Terms] = {}
        self.leases: set[Lease] = set()
        self.evicted = 0
        """Pages evicted so far."""

    def set_terms(self, terms: Mapping[str, Terms]) -> None:
        """These are the terms of tenants from now on. O(tenants)."""
        self.terms = dict(terms)

    @property
    def now(self) -> int:
        """The step counter, which is the only clock here."""
        return self.pool.begun

    @property
    def available(self) -> int:
        """Pages that ``extend`` can get: free ones and cold ones. O(1)."""
        return self.pool.free + self.tree.evictable

    def acquire(self, tokens: Tokens, namespace: bytes, *, limit: int | None = None) -> Lease:
        """Match the longest cached prefix of ``tokens`` and pin it, in one step.

        At least one token is always left to compute. ``limit`` is the number of tokens that may be
        reused at most: a request that needs values at earlier positions passes the first of them.

        O(edges · log children + tokens compared), plus O(edge) when the match ends inside an edge
        and splits it.
        """
        lease = self.reserve(tokens, namespace, 0, limit=limit)
        assert lease is not None, "a lease without pages always fits"
        return lease

    def reserve(
        self,
        tokens: Tokens,
        namespace: bytes,
        room: int,
        *,
        tenant: str = OPEN,
        limit: int | None = None,
        keep: bool = True,
    ) -> Lease | None:
        """``acquire``, with pages for ``room`` tokens in all. Without ``keep`` nothing of what the
        lease computes is left in the cache.

        All or nothing: None means that not so many pages are free or cold beside the matched ones,
        and nothing has changed. Where a part of a block could be copied but its source takes the
        page that is missing, those tokens are left to compute.
        """
        tree = self.tree
        root = tree.root(namespace, tenant)
        reusable = self._reusable(tokens, limit)
        whole = reusable - reusable % tree.block
        anchor, at, child, common = tree.descend(root, tokens, whole)
        if child is not None:
            anchor = tree.split(child, common)
            at += common
        tree.pin(anchor)
        wanted = max(0, -(-room // self.page_size) - at // tree.block)
        stop = min(reusable, at + tree.block)
        source, length = tree.nearest(anchor, tokens, at, stop)
        pages = None
        if source is not None:
            tree.pin(source)
            pages = self.take(max(wanted, 1))
            if pages is None:
                tree.unpin(source, now=0)
                source = None
        if source is None:
            pages = self.take(wanted)
        if pages is None:
            tree.unpin(anchor, now=0)
            return None
        anchor.hits += 1
        lease = Lease(self, tokens, anchor, keep=keep)
        lease.published = lease.computed = lease.reused = at // TOKEN_BYTES
        lease.pages = _row(anchor, pages)
        lease.room = len(lease.pages) * self.page_size
        if source is not None:
            copied = length // TOKEN_BYTES
            lease.pending.append((PageCopy(source.pages[0], pages[0], copied), source))
            lease.computed += copied
            lease.reused += copied
        self.leases.add(lease)
        return lease

    def peek(self, tokens: Tokens, namespace: bytes, *, limit: int | None = None) -> Peek:
        """What ``acquire`` would find. Never splits, pins or touches. Costs what acquire does."""
        root = self.tree.roots.get(namespace)
        if root is None or not self.enabled:
            return Peek(0, 0)
        reusable = self._reusable(tokens, limit)
        whole = reusable - reusable % self.tree.block
        node, at, child, common = self.tree.descend(root, tokens, whole)
        at += common
        stop = min(reusable, at + self.tree.block)
        if child is None:
            _, part = self.tree.nearest(node, tokens, at, stop)
        else:
            # The neighbour is the rest of the very edge that the match ends in.
            part = common_tokens(child, tokens, at - common, stop) - common
        return Peek(at // TOKEN_BYTES, part // TOKEN_BYTES)

    def block_ids(self, tokens: Tokens, namespace: bytes, *, limit: int | None = None) -> list[str]:
        """The identities of the cached whole blocks of ``tokens``, as outsiders know them.

        A chain of xxh3-128 over the blocks, seeded with the namespace. Whoever loads by such an id
        compares the tokens before use. O(tokens matched).
        """
        known = self.peek(tokens, namespace, limit=limit).blocks
        return block_ids(tokens[: known * TOKEN_BYTES], namespace, self.page_size)

    def purge(self, namespace: bytes) -> Purge:
        """Forget a namespace, also under load: running requests keep what they hold, and nothing
        that they compute later is published. O(its nodes + leases)."""
        freed, held = self.tree.detach(namespace)
        self.pool.give_back(freed)
        return Purge(len(freed), held)

    def reset(self, tenant: str | None = None) -> Purge:
        """Forget everything, or all of one tenant, as ``purge`` does it. O(nodes + leases)."""
        purges = [
            self.purge(namespace)
            for namespace, root in list(self.tree.roots.items())
            if tenant is None or root.tenant == tenant
        ]
        return Purge(sum(p.dropped for p in purges), sum(p.held for p in purges))

    def check(self) -> None:
        """Prove the ledger and the tree. O(everything); for tests and for a debugging operator.

        Raises:
            CacheError: something does not add up; the message says what.
        """
        check(self)

    def begin_step(self) -> int:
        """A step is being planned; pages that come back from now on wait for its end. O(1)."""
        return self.pool.begin_step()

    def end_step(self, step: int) -> None:
        """Every step up to ``step`` has committed or failed. O(pages that waited for it)."""
        self.pool.end_step(step)

    # For leases

    def take(self, count: int) -> array[int] | None:
        """``count`` pages, evicting the coldest when too few are free; None if there are not that
        many, and then nothing is evicted, or if too many of them wait for a step in flight.
        O(count + evictions)."""
        pool = self.pool
        if count > pool.free:
            if count > self.available:
                return None
            self.evict(count - pool.free)
            if count > pool.free:
                return None
        return pool.take(count)

    def evict(self, count: int) -> int:
        """Free at least ``count`` pages if so many are cold; returns how many were freed.

        Takes blocks from the end of the coldest leaf. A leaf that was let go while a step was in
        flight stays until that step has ended, for the step may still read it.
        O(log leaves) a leaf, O(1) a page.
        """
        freed = 0
        while freed < count and len(self.tree.order):
            leaf = self.tree.order.coldest()
            if leaf.last_use > self.pool.ended:
                break
            pages = self.tree.trim(leaf, count - freed)
            self.pool.give_back(pages, unused=True)
            freed += len(pages)
        self.evicted += freed
        return freed

    def forget(self, node: Node) -> None:
        """Take the path to ``node`` out of the tree, from its end up, as far as nobody holds or
        continues it. O(blocks + edges)."""
        at: Node | None = node
        while at is not None and at.parent is not None and at.attached:
            if at.pins or at.children is not None:
                return
            parent = at.parent
            self.pool.give_back(self.tree.trim(at, len(at.pages)))
            at = parent

    def unpin(self, node: Node) -> None:
        """Unpin ``node`` and free what a purge left of it."""
        freed = self.tree.unpin(node, now=self.now)
        if freed:
            self.pool.give_back(freed)

    def covered(self, anchor: Node, key: Tokens) -> bool:
        """Whether some child of ``anchor`` begins with ``key``. O(log children)."""
        place = anchor.index(key)
        keys = anchor.keys
        return keys is not None and place < len(keys) and keys[place].startswith(key)

    def drop_open_head(self, anchor: Node, key: Tokens) -> None:
        """Free the open leaf of ``anchor`` that ``key`` begins with: it has become useless."""
        if anchor.keys is None or anchor.children is None:
            return
        place = anchor.index(key) - 1
        if place < 0 or not key.startswith(anchor.keys[place]):
            return
        leaf = anchor.children[place]
        if self.tree.is_open(leaf) and not leaf.pins:
            self.pool.give_back(self.tree.trim(leaf, 1))

    # Below here: the parts of the above

    def _reusable(self, tokens: Tokens, limit: int | None) -> int:
        """Bytes of ``tokens`` that may be reused."""
        if not self.enabled:
            return 0
        most = max(0, len(tokens) // TOKEN_BYTES - 1)
        return (most if limit is None else max(0, min(limit, most))) * TOKEN_BYTES


def block_ids(tokens: Tokens, namespace: bytes, page_size: int) -> list[str]:
    """Chained xxh3-128 of each whole block, in hexadecimal. O(tokens)."""
    block = page_size * TOKEN_BYTES
    digest = xxhash.xxh3_128_digest(b"radixserve:" + namespace)
    ids = []
    for at in range(0, len(tokens) - block + 1, block):
        digest = xxhash.xxh3_128_digest(digest + tokens[at : at + block])
        ids.append(digest.hex())
    return ids


def _row(anchor: Node, private: array[int]) -> array[int]:
    """The pages from the root to the end of ``anchor``, then the private ones. O(edges + pages)."""
    parts = [private]
    node: Node | None = anchor
    while node is not None:
        parts.append(node.pages)
        node = node.parent
    parts.reverse()
    return array("i", b"".join(parts))
