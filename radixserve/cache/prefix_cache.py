"""The prefix cache: prompts in, leases out."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping

from radixserve.cache.allocator import Allocator
from radixserve.cache.ghosts import Eviction
from radixserve.cache.identity import block_ids
from radixserve.cache.keeping import await_return, keep_marks, let_go, refresh
from radixserve.cache.lease import Lease
from radixserve.cache.ledger import check
from radixserve.cache.namespace import PUBLIC
from radixserve.cache.node import Node, Root, Tokens, common_tokens, nearest, page_row, upper
from radixserve.cache.pages import PageCopy, PagePool
from radixserve.cache.peek import Peek
from radixserve.cache.public import PublicPrefixes
from radixserve.cache.purge import Purge, forget, withdraw
from radixserve.cache.quota import Account, Accounts
from radixserve.cache.terms import Keeping, Kept, end_of, expected
from radixserve.cache.tree import RadixTree
from radixserve.tenant import OPEN, Terms
from radixserve.tokens import TOKEN_BYTES


class PrefixCache:
    """Maps token prefixes to KV pages, for one model.

    Args:
        num_pages: pages of the pool, scratch page 0 included.
        page_size: tokens a page.
        enabled: without it nothing is ever matched or kept, and leases only hand out pages.
        keep: part of its pages that a tenant may keep for a time, unless its terms say.
        adaptive: newcomers pass by what is used soon, see ``radixserve.cache.admission``.
    """

    __slots__ = (
        "accounts",
        "allocator",
        "enabled",
        "leases",
        "page_size",
        "pool",
        "public",
        "tree",
    )

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        enabled: bool = True,
        keep: float = 0.5,
        adaptive: bool = False,
    ):
        self.page_size = page_size
        self.enabled = enabled
        self.pool = PagePool(num_pages)
        self.accounts = Accounts(num_pages - 1, keep)
        self.tree = RadixTree(page_size, self.accounts)
        self.allocator = Allocator(self.pool, self.tree, self.accounts, adaptive=adaptive)
        self.public = PublicPrefixes(self.tree.block)
        self.leases: set[Lease] = set()

    def set_terms(self, terms: Mapping[str, Terms]) -> None:
        """These are the terms of tenants from now on. O(tenants)."""
        self.accounts.set_terms(terms)

    @property
    def now(self) -> int:
        """The newest step, by which age is told."""
        return self.pool.begun

    @property
    def time(self) -> int:
        """Whole seconds of the engine's clock; whoever has that sets it, and never back."""
        return self.accounts.time

    @time.setter
    def time(self, seconds: float) -> None:
        clock = self.allocator.clock
        clock.now = max(seconds, clock.now)
        self.accounts.time = int(clock.now)

    @property
    def evicted(self) -> int:
        """Pages evicted so far. O(1)."""
        return self.allocator.evicted

    @property
    def available(self) -> int:
        """Pages that are free or cold. O(1)."""
        return self.pool.free + self.tree.evictable

    def available_to(self, tenant: str) -> int:
        """Pages that ``tenant`` can get while others run: free ones, its own cold ones, and those
        of others beyond what is guaranteed to them. O(log tenants) for each that has changed."""
        return self.pool.free + self.accounts.spare(self.accounts.get(tenant))

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

        All or nothing: None means that not so many pages are free, or cold and not guaranteed to
        others, beside the matched ones, and nothing has changed. While no other lease is held,
        guarantees of others do not count, so that whatever fits the pool runs at last. Where a part
        of a block could be copied but its source takes the page that is missing, those tokens are
        left to compute.
        """
        tree = self.tree
        reusable = self._reusable(tokens, limit)
        public = self.public.of(tokens) if self.enabled else b""
        anchor, at = self._match(tokens, namespace, tenant, reusable, public)
        account = self.accounts.of(tenant) if at < len(public) else anchor.account
        self.accounts.touch(account)
        was_cold, owed = anchor.pins == 1, self.allocator.owed
        # On the account from now on: it must stay open when the last page on it is evicted.
        account.leases += 1
        wanted = max(0, -(-room // self.page_size) - at // tree.block)
        stop = min(reusable, at + tree.block)
        source, length = nearest(anchor, tokens, at, stop)
        pages = None
        if source is not None:
            tree.pin(source)
            pages = self.take(max(wanted, 1), account)
            if pages is None:
                tree.unpin(source, now=0)
                source = None
        if source is None:
            pages = self.take(wanted, account)
        if pages is None:
            tree.unpin(anchor, now=0)
            account.leases -= 1
            self.accounts.drop(account)
            return None
        anchor.hits += 1
        if self.accounts.marked:
            self.accounts.keeps.refreshed += refresh(tree, source or anchor, self.time)
        if was_cold and self.allocator.admission is not None:
            self.allocator.admission.found(anchor)
        lease = Lease(self, tokens, anchor, account, namespace, keep=keep)
        lease.public = public
        lease.owed = self.allocator.owed - owed
        lease.published = lease.computed = lease.reused = at // TOKEN_BYTES
        lease.pages = page_row(anchor, pages)
        lease.room = len(lease.pages) * self.page_size
        lease.missed = self.missed(tokens, at // TOKEN_BYTES, tenant, limit=limit)
        if source is not None:
            copied = length // TOKEN_BYTES
            lease.pending.append((PageCopy(source.pages[0], pages[0], copied), source))
            lease.computed += copied
            lease.reused += copied
        self.leases.add(lease)
        return lease

    def finish(self, lease: Lease, keeping: Keeping, found: int = 0) -> Kept | None:
        """Release ``lease`` and do as its request says, of which ``found`` tokens were cached when
        it came. What came of its marks, if it has any. O(edges + ``Lease.release``)."""
        self.accounts.marked = True
        kept = keep_marks(self.tree, lease, keeping.marks, self.time)
        if keeping.session or keeping.turn or keeping.next_in is not None:
            lease.turn = keeping, found
        lease.release()
        if keeping.next_in is not None:
            await_return(self.tree, lease, expected(self.time, keeping.next_in))
        if keeping.session and keeping.last:
            self.end_session(lease.account.tenant, lease.namespace, keeping.session)
        return kept

    def end_session(self, tenant: str, namespace: bytes, session: str) -> int | None:
        """Nobody will go on with a conversation, or from a turn: its own cold pages go before all
        others. Returns how many these are, None if there is none. O(edges + names)."""
        account = self.accounts.get(tenant)
        if account is None or account.sessions is None:
            return None
        found = account.sessions.end((namespace, session))
        return None if found is None else let_go(self.tree, account.sessions, found)

    def peek(self, tokens: Tokens, namespace: bytes, *, limit: int | None = None) -> Peek:
        """What ``acquire`` would find. Never splits, pins or touches. Costs what acquire does."""
        tree = self.tree
        reusable = self._reusable(tokens, limit)
        whole = reusable - reusable % tree.block
        public = self.public.of(tokens)
        start = self.public.namespace if public else namespace
        root = tree.roots.get(start)
        if root is None:
            return Peek(0, 0)
        node, at, child, common = tree.descend(root, tokens, min(whole, len(public) or whole))
        at += common
        if public and at == len(public):
            # Nobody's neighbours are looked at beyond the end of what is public.
            root = tree.hung.get((namespace, public))
            if root is None:
                return Peek(at // TOKEN_BYTES, 0)
            node, at, child, common = tree.descend(root, tokens, whole)
            at += common
        stop = min(reusable, at + self.tree.block)
        if child is None:
            _, part = nearest(node, tokens, at, stop)
        else:
            # The neighbour is the rest of the very edge that the match ends in.
            part = common_tokens(child, tokens, at - common, stop) - common
        return Peek(at // TOKEN_BYTES, part // TOKEN_BYTES)

    def missed(
        self, tokens: Tokens, depth: int, tenant: str, *, limit: int | None = None
    ) -> Eviction | None:
        """What became of the block of ``tokens`` at ``depth``, which is not there, if it was
        evicted. Of what is public nothing is said: it is everybody's. O(block + prefixes)."""
        at, block = depth * TOKEN_BYTES, self.tree.block
        if not len(self.public.of(tokens)) <= at < self._reusable(tokens, limit):
            return None
        return self.allocator.ghosts.find(tenant, depth, tokens[at : at + block], block)

    def block_ids(self, tokens: Tokens, namespace: bytes, *, limit: int | None = None) -> list[str]:
        """The identities of the cached whole blocks of ``tokens``, as outsiders know them.

        A chain of xxh3-128 over the blocks, seeded with the namespace. Whoever loads by such an id
        compares the tokens before use. O(tokens matched).
        """
        known = self.peek(tokens, namespace, limit=limit).blocks
        return block_ids(tokens[: known * TOKEN_BYTES], namespace, self.page_size)

    def purge(self, namespace: bytes) -> Purge:
        """Forget a namespace, also under load: running requests keep what they hold, and nothing
        that they compute later is published. O(its nodes + roots + leases)."""
        return forget(
            self,
            [root for root in self.tree.all_roots() if root.namespace == namespace],
            [lease for lease in self.leases if lease.namespace == namespace],
        )

    def reset(self, tenants: Collection[str] | None = None) -> Purge:
        """Forget everything, or all of some tenants, as ``purge`` does it. O(nodes + leases +
        tenants)."""
        if tenants is None:
            return forget(self, self.tree.all_roots(), self.leases)
        theirs = {self.accounts.get(tenant) for tenant in tenants}
        return forget(
            self,
            [root for root in self.tree.all_roots() if root.account in theirs],
            [lease for lease in self.leases if lease.account in theirs],
        )

    def set_public(self, prefixes: Iterable[Tokens], *, namespace: bytes = PUBLIC) -> None:
        """All tenants share these prefixes (int32 big-endian, floored to whole blocks) from now on,
        and no others. ``namespace`` says what their KV is made with.

        Requests that run keep what they hold; what is public no more is found by nobody, and
        neither is what followed it. O(tokens + leases + namespaces + nodes cut off).
        """
        self.public.namespace = namespace
        for prefix in self.public.set(prefixes):
            withdraw(self, prefix)

    def scope(self, tokens: Tokens, namespace: bytes, at: int) -> bytes:
        """In which namespace the block of ``tokens`` stands that begins at token ``at``. O(public
        prefixes)."""
        public = self.public.of(tokens)
        return self.public.namespace if at * TOKEN_BYTES < len(public) else namespace

    def check(self) -> None:
        """Prove the ledger and the tree. O(everything); for tests and for a debugging operator.

        Raises:
            CacheError: something does not add up; the message says what.
        """
        check(self)

    def evict(self, count: int) -> int:
        """Free ``count`` pages, if so many are cold; returns how many it were."""
        return self.allocator.evict(count)

    def begin_step(self) -> int:
        """A step is being planned; pages that come back from now on wait for its end. O(1)."""
        return self.allocator.begin_step()

    def end_step(self, step: int) -> None:
        """Every step up to ``step`` has committed or failed. O(pages that waited for it)."""
        self.pool.end_step(step)

    # For leases

    def share(self, twin: Lease) -> None:
        """Put a lease on the books that holds what another one holds. O(its private pages)."""
        self.pool.share(twin.pages[twin.published // self.page_size :])
        self.tree.pin(twin.anchor)
        self.leases.add(twin)
        twin.account.leases += 1

    def let_go(self, lease: Lease) -> None:
        """Take a lease off the books. O(1)."""
        self.leases.discard(lease)
        lease.account.leases -= 1
        self.accounts.drop(lease.account)

    def take(self, count: int, account: Account, lease: Lease | None = None) -> array[int] | None:
        """``count`` pages for ``account`` and its ``lease``, if it has one. See ``Allocator``."""
        owed = self.allocator.owed
        taken = self.allocator.take(count, account, alone=self.leases <= {lease})
        if lease is not None:
            lease.owed += self.allocator.owed - owed
        return taken

    def give_back(self, account: Account, pages: Iterable[int]) -> None:
        """``account`` gives back ``pages``, of which others may hold some. O(pages)."""
        self.allocator.give_back(account, pages)

    def drop(self, anchor: Node) -> None:
        """Unpin ``anchor`` and take the path to it out of the tree, from its end up, as far as
        nobody holds or continues it. O(blocks + edges)."""
        at = upper(anchor) if isinstance(anchor, Root) else anchor
        self.unpin(anchor)
        while at is not None and at.attached and not at.pins and at.children is None:
            if isinstance(at, Root):
                return
            above = upper(at)
            if isinstance(above, Root) and above.above is not None:
                above = above.above
            at.account.order.remove(at)
            self.give_back(at.account, self.tree.trim(at, len(at.pages)))
            at = above

    def unpin(self, node: Node) -> None:
        """Unpin ``node`` and free what a purge left of it."""
        for gone in self.tree.unpin(node, now=self.now):
            self.give_back(gone.account, gone.pages)

    def drop_open_head(self, anchor: Node, key: Tokens) -> int:
        """Free the open leaf of ``anchor`` that ``key`` begins with: it has become useless. Returns
        how long it was to be kept, as what takes its place has to be."""
        place = anchor.index(key) - 1
        if place < 0 or anchor.children is None:
            return 0
        leaf, kept = anchor.children[place], 0
        if not key.startswith(leaf.key):
            return 0
        if self.tree.is_open(leaf) and not leaf.pins:
            kept = leaf.kept if end_of(leaf.kept) > self.time else 0
            leaf.account.order.remove(leaf)
            self.give_back(leaf.account, self.tree.trim(leaf, 1))
        return kept

    # Below here: the parts of the above

    def _match(
        self, tokens: Tokens, namespace: bytes, tenant: str, reusable: int, public: bytes
    ) -> tuple[Node, int]:
        """Pin the end of the longest match; also returns its length in bytes, of whole blocks."""
        tree = self.tree
        whole = reusable - reusable % tree.block
        if not public:
            root = tree.roots.get(namespace) or tree.root(namespace, self.accounts.of(tenant))
            anchor, at = tree.reach(root, tokens, whole)
            tree.pin(anchor)
            return anchor, at
        shared = self.accounts.public
        self.accounts.touch(shared)
        root = tree.roots.get(self.public.namespace) or tree.root(self.public.namespace, shared)
        end, at = tree.reach(root, tokens, min(whole, len(public)))
        tree.pin(end)
        if at < len(public):
            return end, at
        root = tree.hang(end, public, namespace, tenant)
        anchor, at = tree.reach(root, tokens, whole)
        tree.pin(anchor)
        tree.unpin(end, now=0)
        return anchor, at

    def _reusable(self, tokens: Tokens, limit: int | None) -> int:
        """Bytes of ``tokens`` that may be reused."""
        if not self.enabled:
            return 0
        most = max(0, len(tokens) // TOKEN_BYTES - 1)
        return (most if limit is None else max(0, min(limit, most))) * TOKEN_BYTES
