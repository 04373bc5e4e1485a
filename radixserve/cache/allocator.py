"""Pages for whoever needs some, from the pool or from what is cold."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from operator import attrgetter

from radixserve.cache.admission import Admission
from radixserve.cache.clock import StepClock
from radixserve.cache.ghosts import Ghosts
from radixserve.cache.pages import PagePool
from radixserve.cache.quota import Account, Accounts
from radixserve.cache.tree import RadixTree


class Allocator:
    """Takes pages from the pool, evicts when it is empty, and keeps account of both.

    Args:
        adaptive: whether newcomers pass by what is young, see ``radixserve.cache.admission``.
    """

    __slots__ = ("accounts", "admission", "clock", "evicted", "ghosts", "owed", "pool", "tree")

    def __init__(
        self,
        pool: PagePool,
        tree: RadixTree,
        accounts: Accounts,
        *,
        adaptive: bool = False,
    ):
        self.pool, self.tree, self.accounts = pool, tree, accounts
        self.clock = StepClock()
        self.admission = Admission(accounts.pages, self.clock) if adaptive else None
        self.evicted = 0
        """Pages evicted so far."""
        self.owed = 0
        """Those of them that were young when their own tenant needed them."""
        self.ghosts = Ghosts(pool.num_pages, self.clock)

    def begin_step(self) -> int:
        """As the pool does, and note when it was. O(1) amortized."""
        step = self.pool.begin_step()
        self.clock.begin_step(step)
        return step

    def take(self, count: int, account: Account, *, alone: bool) -> array[int] | None:
        """``count`` pages for ``account``; ``alone`` says that nobody else holds any.

        None if there are not that many, and then nothing is evicted, or if too many of them wait
        for a step in flight. See ``radixserve.cache.quota`` for what is evicted. Only who is alone
        gets what is guaranteed to others: it is all that is left then, and waiting for it would
        never end. O(count + evictions).
        """
        if count == 0:
            return array("i")
        pool, accounts = self.pool, self.accounts
        short = count - pool.free
        # Pages in quarantine come back when a step ends.
        alone = alone and not pool.quarantined
        if short > 0 and short > (self.tree.evictable if alone else accounts.spare(account)):
            return None
        beyond = account.used + count - account.quota.maximum
        if beyond > 0:
            self._shrink(account, min(beyond, account.cold), account)
            short = count - pool.free
        if short > 0:
            self._evict(short, account, everything=alone)
            if count > pool.free:
                return None
        accounts.take(account, count)
        return pool.take(count)

    def give_back(self, account: Account, pages: Iterable[int]) -> None:
        """``account`` gives back ``pages``, of which others may hold some. O(pages)."""
        self.accounts.free(account, self.pool.give_back(pages))

    def evict(self, count: int) -> int:
        """Free ``count`` pages, if so many are cold; returns how many it were.

        Takes blocks from the end of the coldest leaf. A leaf that was let go while a step was in
        flight stays until that step has ended, for the step may still read it.
        O(log leaves + log tenants) a leaf, O(1) a page.
        """
        return self._evict(count, None, everything=True)

    # Below here: the parts of the above

    def _evict(self, count: int, account: Account | None, *, everything: bool) -> int:
        """Free ``count`` pages for the sake of ``account``; with ``everything``, also what is
        guaranteed to others."""
        accounts = self.accounts
        freed = 0
        spent: set[Account] = set()
        while freed < count and (turn := accounts.victim(spent)) is not None:
            victim, most = turn
            most = min(most, count - freed)
            got = self._shrink(victim, most, account)
            freed += got
            if got < most:
                spent.add(victim)
        if account is not None:
            freed += self._shrink(account, count - freed, account)
        while freed < count and everything:
            # Rare: whoever has most goes first, and what the leaves of one leave may be another's.
            got = 0
            for victim in sorted(accounts, key=attrgetter("cold"), reverse=True):
                got += self._shrink(victim, count - freed - got, account)
            if got == 0:
                break
            freed += got
        return freed

    def _shrink(self, victim: Account, count: int, account: Account | None) -> int:
        """Evict up to ``count`` pages of ``victim``; returns how many it were. The coldest go
        first, or those that ``radixserve.cache.admission`` says."""
        pool, order, admission = self.pool, victim.order, self.admission
        if account is None:
            admission = None
        old = pool.ended if admission is None else min(pool.ended, admission.old(victim))
        victim.kept.total(self.accounts.time)  # what is over is counted as such before it goes
        freed = 0
        while freed < count and (leaf := order.pop(pool.ended, self.clock, old)) is not None:
            most, last_use = count - freed, leaf.last_use
            young = last_use > old and leaf.kept >= 0
            if young and leaf.newcomer:
                most = min(most, leaf.newcomer)
            self.ghosts.note(leaf, most, self.tree.block, own=victim is account)
            leaf.newcomer = max(0, leaf.newcomer - most)
            pages = self.tree.trim(leaf, most)
            pool.give_back(pages, unused=True)
            freed += len(pages)
            if admission is not None:
                admission.gone(victim, last_use, len(pages))
                if young and victim is account:
                    self.owed += len(pages)
        if freed:
            self.evicted += freed
            victim.suffered += freed
            if account is not None:
                account.caused += freed
            self.accounts.free(victim, freed)
        return freed
