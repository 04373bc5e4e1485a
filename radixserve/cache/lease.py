"""The only way to touch the cache: a hold on the pages of one sequence."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from radixserve.cache.errors import CacheError
from radixserve.cache.keeping import keep_first_block, node_at, raise_to, refresh
from radixserve.cache.node import Node, Tokens, common_blocks
from radixserve.cache.pages import PageCopy
from radixserve.cache.sessions import Sessions
from radixserve.cache.terms import Keeping
from radixserve.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from radixserve.cache.ghosts import Eviction
    from radixserve.cache.prefix_cache import PrefixCache
    from radixserve.cache.quota import Account


class Lease:
    """The pages of one sequence, from its first token to its last.

    ::

        tokens  0 ......... reused ........ published ......... computed .... reserved
        pages   [ tree, pinned by the lease ][ tree, mine too   ][ private: the open block ]

    The lease is anchored at the end of one node, at ``published`` tokens. ``tokens`` is borrowed:
    the owner of the sequence appends to it, the lease only reads. ``pages`` is the page row of the
    sequence, one id a block, as int32.
    """

    __slots__ = (
        "_cache",
        "account",
        "anchor",
        "computed",
        "keep",
        "missed",
        "namespace",
        "open_kept",
        "owed",
        "pages",
        "pending",
        "public",
        "published",
        "released",
        "reused",
        "room",
        "tokens",
        "turn",
    )

    def __init__(
        self,
        cache: PrefixCache,
        tokens: Tokens,
        anchor: Node,
        account: Account,
        namespace: bytes,
        *,
        keep: bool = True,
    ):
        self._cache = cache
        self.account = account
        """Whose the pages are that it takes."""
        self.namespace = namespace
        self.public = b""
        """The public prefix that its tokens begin with: up to there it publishes for all."""
        self.keep = keep
        """Whether what this sequence computes is left in the tree for others."""
        self.pending: list[tuple[PageCopy, Node | None]] = []
        """Copies that have not run yet, each with the node that is pinned for it (None: its page
        is held instead)."""
        self.tokens = tokens
        self.anchor = anchor
        self.pages: array[int] = array("i")
        self.reused = 0
        """Tokens that were in the cache when the lease was made, copied ones included."""
        self.published = 0
        """Tokens of whole blocks that stand in the tree; a multiple of the page size."""
        self.missed: Eviction | None = None
        """What became of the first block that was not found, if it was evicted."""
        self.computed = 0
        self.room = 0
        """Tokens, from the first on, that may be computed before more pages are needed."""
        self.released = False
        self.open_kept = 0
        """How long its open block is to be kept once it is released."""
        self.turn: tuple[Keeping, int] | None = None
        """What ends with it for now by name, and how much of that was there before."""
        self.owed = 0
        """Pages that were young when it took them, see ``radixserve.cache.admission``."""

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def private(self) -> bool:
        """Whether nothing of this sequence is published: no cache, purged meanwhile, or not to be
        kept."""
        return not (self.keep and self._cache.enabled and self.anchor.attached)

    @property
    def sole_open_block(self) -> bool:
        """Whether it has a block that is computed in part, and shares it with no fork."""
        block, filled = divmod(self.computed, self._cache.page_size)
        alone = filled and not self.pending and self._cache.pool.holders(self.pages[block]) == 1
        return bool(alone)

    @property
    def scope(self) -> bytes:
        """The namespace of the block that it publishes next."""
        if self.published * TOKEN_BYTES < len(self.public):
            return self._cache.public.namespace
        return self.namespace

    def yields_to(self, tenant: str) -> bool:
        """Whether pages that it lets go of may become ``tenant``'s. O(1)."""
        return self._cache.accounts.yields(self.account, tenant)

    def extend(self, count: int) -> bool:
        """Get pages for ``count`` tokens after the computed ones, evicting as needed.

        All or nothing: False means that not enough pages are free or cold, and nothing changed.
        An open block that a fork shares is exchanged for a copy, since it is about to be written.
        O(pages taken + evictions).
        """
        if self.computed + count <= self.room:
            return True
        self._demand_live()
        size = self._cache.page_size
        missing = -(-(self.computed + count) // size) - len(self.pages)
        open_block, filled = divmod(self.computed, size)
        shared = filled > 0 and count > 0 and self._cache.pool.holders(self.pages[open_block]) > 1
        taken = self._cache.take(max(0, missing) + shared, self.account, self)
        if taken is None:
            return False
        if shared:
            page = taken.pop()
            # The shared page is held until the copy has run, whatever its other holders do.
            self.pending.append((PageCopy(self.pages[open_block], page, filled), None))
            self.pages[open_block] = page
        self.pages.extend(taken)
        self.room = len(self.pages) * size
        return True

    @property
    def copies(self) -> list[PageCopy]:
        """The copies that must run before anything of this sequence is computed. O(copies)."""
        return [copy for copy, _ in self.pending]

    def copied(self) -> None:
        """The copies have run: their sources need no protection any more. O(copies)."""
        if not self.pending:
            return
        copies, self.pending = self.pending, []
        for copy, source in copies:
            if source is None:
                self._cache.give_back(self.account, [copy.source])
            else:
                self._cache.unpin(source)

    def publish(self, computed: int) -> None:
        """The KV of the first ``computed`` tokens exists: put its whole blocks into the tree.

        Where another sequence put the same block there first, the lease adopts that block's page
        and gives its own back. O(new blocks + edges · log children).

        Raises:
            CacheError: fewer tokens than before, more than there are pages for, a block whose
                tokens are not known, or copies of this lease have not run yet.
        """
        if self.pending or not self.computed <= computed <= self.room:
            self._refuse(computed)
        size = self._cache.page_size
        if computed - self.published < size:
            self.computed = computed
            return
        if computed * TOKEN_BYTES > len(self.tokens):
            self._refuse(computed)
        self.computed = computed
        end = computed - computed % size
        while self.published < end and not self.private:
            self._publish_to(end)

    def fork(self, tokens: Tokens) -> Lease:
        """A second lease on the computed part of this sequence; ``tokens`` begins with it.

        The open block is shared until one of the two writes to it. O(pages).

        Raises:
            CacheError: copies of this lease have not run yet.
        """
        self._demand_live()
        if self.pending:
            raise CacheError("a lease is forked before its copies have run")
        cache = self._cache
        twin = Lease(cache, tokens, self.anchor, self.account, self.namespace, keep=self.keep)
        twin.public = self.public
        twin.computed = twin.reused = self.computed
        twin.published = self.published
        twin.room = self.computed
        if self.computed % cache.page_size:
            # Both ask before they write to the open block, which they share.
            self.room = self.computed
        twin.pages = self.pages[: -(-self.computed // cache.page_size)]
        cache.share(twin)
        return twin

    def release(self, *, keep: bool = True) -> None:
        """Let go. The published blocks cool down in the tree; the computed part of the open block
        stays with them, to be copied from; all else is given back. Idempotent. O(pages).

        Without ``keep`` something in these pages is wrong, nobody knows where: all of them leave
        the tree, but for those that others hold or have continued."""
        if self.released:
            return
        self.released = True
        self.room = -1
        cache = self._cache
        private = self.pages[self.published // cache.page_size :]
        leaf = None if self.pending or not keep else self._leave_open_block(private)
        self.copied()
        cache.give_back(self.account, private if leaf is None else private[1:])
        if keep:
            self._end_turn(leaf or self.anchor)
            if cache.allocator.admission is not None:
                cache.allocator.admission.pay(self, leaf)
            cache.unpin(self.anchor)
        else:
            cache.drop(self.anchor)
        cache.let_go(self)

    # Below here: the parts of the above

    def _demand_live(self) -> None:
        if self.released:
            raise CacheError("a released lease is used")

    def _refuse(self, computed: int) -> None:
        self._demand_live()
        if self.pending:
            raise CacheError("a lease publishes before its copies have run")
        room = min(self.room, len(self.tokens) // TOKEN_BYTES)
        raise CacheError(f"{computed} tokens computed, {self.computed} before, room for {room}")

    def _publish_to(self, end: int) -> None:
        """Publish one run of blocks: adopt what stands there already, or append our own."""
        cache, tree, anchor = self._cache, self._cache.tree, self.anchor
        at, stop = self.published * TOKEN_BYTES, end * TOKEN_BYTES
        if at < len(self.public):
            stop = min(stop, len(self.public))
            end = stop // TOKEN_BYTES
        if anchor.children:
            child = anchor.child(self.tokens[at : at + tree.block])
            if child is not None:
                self._adopt(child, at, stop)
                return
        key = self.tokens[at:stop]
        first = self.published // cache.page_size
        pages = self.pages[first : end // cache.page_size]
        kept = cache.drop_open_head(anchor, key) if anchor.children else 0
        if anchor.pins == 1 and anchor.children is None and anchor.parent and not anchor.kept:
            tree.grow(anchor, key, pages, now=cache.now)
        else:
            self._move_to(tree.add(anchor, key, pages, now=cache.now))
        opened = self.published + cache.page_size
        self._published(end, len(pages))
        if kept:
            raise_to(tree, node_at(tree, self.anchor, opened), kept)

    def _adopt(self, child: Node, at: int, stop: int) -> None:
        cache, tree = self._cache, self._cache.tree
        common = common_blocks(child, self.tokens, at, stop, tree.block)
        if common < len(child.key):
            child = tree.split(child, common)
        first = at // tree.block
        mine = self.pages[first : first + len(child.pages)]
        self.pages[first : first + len(child.pages)] = child.pages
        cache.give_back(self.account, mine)
        self._move_to(child)
        if child.kept:
            refresh(tree, child, cache.time)
        self._published(child.end, 0)

    def _published(self, end: int, pages: int) -> None:
        """Our own ``pages`` stand in the tree now, and we are anchored at ``end``."""
        cache, anchor = self._cache, self.anchor
        if anchor.account is not self.account:
            cache.accounts.move(self.account, anchor.account, pages)
        self.published = end
        if self.public and end * TOKEN_BYTES == len(self.public):
            tenant = self.account.tenant
            self._move_to(cache.tree.hang(anchor, self.public, self.namespace, tenant))

    def _move_to(self, node: Node) -> None:
        # Pinned before the old anchor is let go, so that nothing in between is ever unpinned.
        old, self.anchor = self.anchor, node
        self._cache.tree.pin(node)
        self._cache.unpin(old)

    def _leave_open_block(self, private: array[int]) -> Node | None:
        """Leave the open block in the tree if it is of use; returns the leaf that it is then."""
        cache, anchor = self._cache, self.anchor
        filled = self.computed - self.published
        if self.private or not 0 < filled < cache.page_size or cache.pool.holders(private[0]) > 1:
            return None
        at = self.published * TOKEN_BYTES
        key = self.tokens[at : at + filled * TOKEN_BYTES]
        leaf, kept = None, self.open_kept
        there = anchor.child(key)
        if there is None:
            kept = max(kept, cache.drop_open_head(anchor, key))
            there = leaf = cache.tree.add(anchor, key, private[:1], now=cache.now)
            if anchor.account is not self.account:
                cache.accounts.move(self.account, anchor.account, 1)
        if kept:
            keep_first_block(cache.tree, there, kept)
        return leaf

    def _end_turn(self, end: Node) -> None:
        """The turn ends at ``end``, which is not unpinned before this is known."""
        account = self.account
        if self.turn is None or not end.attached or end.account is not account:
            return
        if account.sessions is None:
            account.sessions = Sessions()
        keeping, found = self.turn
        found -= found % self._cache.page_size
        session = self.namespace, keeping.session
        if keeping.session:
            account.sessions.put(session, end, found, owned=keeping.owned)
        elif keeping.next_in is not None:
            account.sessions.put(session, end, 0)  # for a moment
        if keeping.turn:
            whole = session if keeping.session else None
            account.sessions.put((self.namespace, keeping.turn), end, found, whole)
