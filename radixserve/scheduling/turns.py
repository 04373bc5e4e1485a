"""Whose turn it is among the tenants that wait."""

from __future__ import annotations

from sortedcontainers import SortedList

from radixserve.scheduling.account import Account

Key = tuple[float, int, str]


class Turns:
    """Deficit rounds over virtual token counters.

    The tenant that was served least has the turn, and keeps it for one ``quantum`` of virtual time,
    so that those who share a prefix run one after the other (Cao et al., "Locality-aware Fair
    Scheduling in LLM Serving", 2025, whose deficit is what is left of the turn). A tenant that
    begins to wait ends the turn of another: it has waited for nothing so far.

    Counters only ever grow, so a place in the order may be too early and never too late: it is put
    right when it is looked at.
    """

    __slots__ = ("_count", "_holder", "_keys", "_order", "_passed_over", "_quantum", "_until")

    def __init__(self, quantum: float):
        self._quantum = quantum
        self._order: SortedList[tuple[Key, Account]] = SortedList(key=lambda each: each[0])
        self._keys: dict[str, Key] = {}
        self._passed_over: dict[str, Account] = {}
        """Those that are not in the order: they have nothing that could begin in this plan."""
        self._holder: Account | None = None
        self._until = 0.0
        self._count = 0

    def __contains__(self, account: Account) -> bool:
        return account.tenant in self._keys

    def join(self, account: Account) -> None:
        """It waits from now on. O(log tenants)."""
        self._holder = None
        self._put(account)

    def leave(self, account: Account) -> None:
        """It does not wait any more. O(log tenants)."""
        if self._holder is account:
            self._holder = None
        key = self._keys.pop(account.tenant)
        if self._passed_over.pop(account.tenant, None) is None:
            self._order.remove((key, account))

    def begin(self) -> None:
        """Another plan: whoever waits may have something that could begin. O(log tenants) for each
        that was passed over."""
        while self._passed_over:
            _, account = self._passed_over.popitem()
            self._put(account)

    def least(self) -> Account | None:
        """The tenant that was served least, but for those passed over; None if there is none.

        O(log tenants) for each whose counter has grown since its place was last looked at.
        """
        while self._order:
            key, account = self._order[0]
            if key == _key(account):
                return account
            del self._order[0]
            self._put(account)
        return None

    def next(self) -> Account | None:
        """Who has the turn, if need be a new one. As ``least``."""
        holder = self._holder
        if holder is None or holder.virtual >= self._until:
            self._holder = holder = self.least()
            if holder is not None:
                self._count += 1
                holder.turn = self._count
                self._until = holder.virtual + self._quantum
        return holder

    def pass_over(self, account: Account) -> None:
        """Its turn is over: it has nothing that could begin in this plan. O(log tenants)."""
        self._holder = None
        self._order.remove((self._keys[account.tenant], account))
        self._passed_over[account.tenant] = account

    def _put(self, account: Account) -> None:
        key = self._keys[account.tenant] = _key(account)
        self._order.add((key, account))


def _key(account: Account) -> Key:
    return (account.virtual, account.turn, account.tenant)
