"""Whose pages are whose, and whose go first when somebody needs some.

What a tenant *uses* are all pages that are there because of it: those that its prefixes keep, and
those that only its running requests hold. A page that several of its requests share counts once.

Somebody who needs pages takes them, one group after the other, from

1. itself, as far as it would go beyond its own maximum;
2. tenants beyond their maximum, the farthest first;
3. tenants that have asked for nothing for a long time (``IDLE``);
4. the tenant that uses most beyond its guarantee, by weight; it may be itself;
5. what is public;
6. its own guaranteed pages.

Guaranteed pages of others are left alone, unless nobody else runs: only then would waiting never
end. With one tenant there is one order, and it is that of age.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sortedcontainers import SortedKeyList

from radixserve.cache.admission import Reuse
from radixserve.cache.eviction import EvictionOrder
from radixserve.cache.sessions import Sessions
from radixserve.cache.terms import KeepCounts, KeptPages
from radixserve.tenant import OPEN, Terms

IDLE = 8
"""A tenant is idle that has asked for nothing while the whole pool was taken so many times."""

GRAINS = 256
"""Shares are kept to within this part of the pool, so that a turn takes more than one page."""

_DEFAULTS = Terms()

Rank = tuple[int, bool, float, int]


@dataclass(frozen=True, slots=True)
class Quota:
    """Terms, in pages."""

    guaranteed: int
    maximum: int
    weight: float
    keep: int = 0
    """Pages that may be kept at once; see ``radixserve.cache.keeping``."""

    @classmethod
    def of(cls, terms: Terms, pages: int, keep: float = 0.0) -> Quota:
        """``terms`` in a pool of ``pages``: what is guaranteed or may be kept is rounded down, the
        rest up; ``keep`` is for those whose terms say nothing of it."""
        maximum = math.ceil(terms.maximum * pages)
        return cls(
            int(terms.guaranteed * pages),
            maximum,
            max(terms.weight, 1e-9),
            int((keep if terms.keep is None else terms.keep) * maximum),
        )


@dataclass(slots=True, eq=False)
class Account:
    """The pages of one tenant."""

    tenant: str
    serial: int
    quota: Quota
    order: EvictionOrder = field(default_factory=EvictionOrder)
    """Its cold leaves."""
    used: int = 0
    """All its pages: cached ones, and those that only its leases hold."""
    cold: int = 0
    """Those of them that are cached and not pinned."""
    leases: int = 0
    caused: int = 0
    """Pages evicted so far because it needed some."""
    suffered: int = 0
    """Pages of it that were evicted so far, for itself or for others."""
    touched: int = 0
    """Pages that had been taken by all when it last asked for something."""
    idle: bool = False
    spare: int = 0
    """Pages of it that others may take, as of when it was last ranked."""
    rank: Rank | None = None
    """Its place among those who have something to spare; the lowest is taken from first."""
    kept: KeptPages = field(default_factory=KeptPages)
    sessions: Sessions | None = None
    """Its conversations, once it has named one."""
    reuse: Reuse | None = None
    """How soon its pages are used again, once something is known."""


class Accounts:
    """An account for each tenant that has terms, pages or leases; no others.

    Args:
        pages: of the pool, which the shares are shares of.
        keep: part of its maximum that a tenant may keep whose terms say nothing of it.
    """

    __slots__ = (
        "_grain",
        "_keep",
        "_lately",
        "_open",
        "_ranked",
        "_serial",
        "_spare",
        "_tenants",
        "_terms",
        "changed",
        "keeps",
        "marked",
        "pages",
        "public",
        "taken",
        "time",
    )

    def __init__(self, pages: int, keep: float = 0.0):
        self.pages = pages
        self._keep = keep
        self.time = 0
        """Whole seconds of the engine's clock, as they were told last."""
        self.marked = False
        """Whether anything was ever to be kept, or let go of."""
        self.keeps = KeepCounts()
        self.taken = 0
        """Pages that were taken so far, by all."""
        self._grain = max(1, pages // GRAINS)
        self._terms: Mapping[str, Terms] = {}
        self._tenants: dict[str, Account] = {}
        self._serial = 0
        self.changed: set[Account] = set()
        """Those that may be ranked as they were, not as they are."""
        self._ranked: SortedKeyList[Account, Rank] = SortedKeyList(key=_rank)
        self._spare = 0
        self._lately: OrderedDict[Account, None] = OrderedDict()
        """Those that are not idle; whoever has asked for nothing for longest comes first."""
        free = Quota(0, pages, math.inf, pages)
        self.public = Account("", 0, free, kept=KeptPages(self.keeps))
        """The pages of public prefixes, which count as nobody's."""
        self._open = self.of(OPEN)

    def __iter__(self) -> Iterator[Account]:
        yield from self._tenants.values()
        yield self.public

    def tenants(self) -> Iterable[Account]:
        """All but that of what is public. O(1)."""
        return self._tenants.values()

    def set_terms(self, terms: Mapping[str, Terms]) -> None:
        """These are the terms from now on. O(tenants)."""
        self._terms = dict(terms)
        for tenant in terms:
            self.of(tenant)
        for account in list(self._tenants.values()):
            account.quota = self._quota(account.tenant)
            self.changed.add(account)
            self.drop(account)

    def get(self, tenant: str) -> Account | None:
        """The account of ``tenant``, if it has one. O(1)."""
        return self._tenants.get(tenant)

    def of(self, tenant: str) -> Account:
        """The account of ``tenant``, opened if need be. O(1)."""
        account = self._tenants.get(tenant)
        if account is None:
            self._serial += 1
            kept = KeptPages(self.keeps)
            account = Account(tenant, self._serial, self._quota(tenant), kept=kept)
            self._tenants[tenant] = account
            self.touch(account)
        return account

    def drop(self, account: Account) -> None:
        """Close the account if there is nothing in it. O(1), O(log tenants) if it is closed."""
        tenant = account.tenant
        if account.used or account.leases or tenant == OPEN or tenant in self._terms:
            return
        if self._tenants.get(tenant) is account:
            self._rank(account)
            self.changed.discard(account)
            self._lately.pop(account, None)
            del self._tenants[tenant]

    # What happens to pages. O(1) each

    def touch(self, account: Account) -> None:
        """It asks for something."""
        account.touched = self.taken
        if account.idle:
            account.idle = False
            self.changed.add(account)
        self._lately[account] = None
        self._lately.move_to_end(account)

    def take(self, account: Account, pages: int) -> None:
        """It uses so many pages more."""
        account.used += pages
        self.taken += pages
        self.changed.add(account)

    def free(self, account: Account, pages: int) -> None:
        """It uses so many pages less; an account that is empty now is closed."""
        account.used -= pages
        self.changed.add(account)
        if not account.used:
            self.drop(account)

    def move(self, source: Account, target: Account, pages: int) -> None:
        """``target`` uses so many pages in place of ``source``, of which it is no part to begin."""
        source.used -= pages
        target.used += pages
        self.changed.update((source, target))

    # Whose go first

    def spare(self, account: Account | None) -> int:
        """Cold pages that may be evicted for ``account``: all of its own, and those of others
        beyond what is guaranteed to them. O(log tenants) for each account that has changed."""
        self._settle()
        return self._spare + (account.cold - account.spare if account is not None else 0)

    def yields(self, holder: Account, tenant: str) -> bool:
        """Whether ``tenant`` could take pages that ``holder`` lets go of. O(1)."""
        return holder.tenant == tenant or holder.used > holder.quota.guaranteed

    def victim(self, spent: set[Account]) -> tuple[Account, int] | None:
        """Who is to lose pages next, and how many at most before this is to be asked again.

        ``spent`` are those of whom no more can be had now. O(log tenants) for each account that
        has changed, O(spent).
        """
        if len(self._tenants) == 1 and not self.public.used:
            # The server of one tenant: there is nobody to rank.
            only = self._open
            return (only, only.cold) if only.cold and only not in spent else None
        self._settle()
        if not spent:
            if not self._ranked:
                return None
            first = self._ranked[0]
            return first, first.spare if len(self._ranked) == 1 else min(first.spare, self._grain)
        among = (account for account in self._ranked if account not in spent)
        other = next(among, None)
        return None if other is None else (other, min(other.spare, self._grain))

    def sound(self) -> bool:
        """Whether everybody stands where they belong. O(tenants log tenants)."""
        self._settle()
        ranked = list(self._ranked)
        return (
            self._spare == sum(account.spare for account in self)
            and {account for account in self if account.spare} == set(ranked)
            and len(ranked) == len(set(ranked))
            and all(account.spare == self._to_spare(account) for account in self)
            and all(account.rank == self._place(account) for account in ranked)
            and all((account.rank is not None) == (account.spare > 0) for account in self)
            and ranked == sorted(ranked, key=_rank)
        )

    # Below here: the parts of the above

    def _quota(self, tenant: str) -> Quota:
        return Quota.of(self._terms.get(tenant, _DEFAULTS), self.pages, self._keep)

    def _settle(self) -> None:
        while len(self._lately) > 1:  # alone, nobody is kept from anything
            account = next(iter(self._lately))
            if self.taken - account.touched <= IDLE * self.pages:
                break
            if account.leases:
                self.touch(account)
            else:
                del self._lately[account]
                account.idle = True
                self.changed.add(account)
        for account in self.changed:
            self._rank(account)
        self.changed.clear()

    def _rank(self, account: Account) -> None:
        spare = self._to_spare(account)
        self._spare += spare - account.spare
        account.spare = spare
        place = self._place(account) if spare else None
        if place == account.rank:
            return
        if account.rank is not None:
            self._ranked.remove(account)
        account.rank = place
        if place is not None:
            self._ranked.add(account)

    def _to_spare(self, account: Account) -> int:
        if account is self.public:
            # What lies above others' pages can only go after them; of leaves there are few.
            return sum(len(leaf.pages) for leaf in account.order.leaves())
        return max(0, min(account.cold, account.used - account.quota.guaranteed))

    def _place(self, account: Account) -> Rank:
        """Counted in grains, so that it seldom changes."""
        quota, grain = account.quota, self._grain
        beyond = max(0, account.used - quota.maximum)
        excess = (account.used - quota.guaranteed) / quota.weight
        return (-beyond, not account.idle, -(excess // grain), account.serial)


def _rank(account: Account) -> Rank:
    assert account.rank is not None, "only who has something to spare is ranked"
    return account.rank
