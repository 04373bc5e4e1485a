"""What each tenant has been served, in work that was done for it.

Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024), over
work that was not cached: what was reused costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from radixserve.tenant import Terms

PREFILL_WORK = 1
"""Service that a prompt token counts as when it is computed."""
DECODE_WORK = 2
"""Service that a generated token counts as; both as in the paper (section 5.1)."""


@dataclass(slots=True, eq=False)
class Account:
    """One tenant's counters. Service is charged and never given back."""

    tenant: str
    weight: float = 1.0
    prefilled: int = 0
    """Prompt tokens computed; those that are computed again after a preemption only once."""
    generated: int = 0
    """Tokens sampled."""
    started: int = 0
    """Requests that have left the queue for the first time."""
    waited: int = 0
    """Steps that they had waited, all together."""
    waiting: int = 0
    """Requests in the queue."""
    turn: int = 0
    """The number of its last turn; whoever had none for longest goes first among equals."""
    _lifted: float = field(default=0.0, repr=False)

    @property
    def service(self) -> int:
        """Work done for it since the start."""
        return PREFILL_WORK * self.prefilled + DECODE_WORK * self.generated

    @property
    def virtual(self) -> float:
        """Its virtual time: service by weight, and whatever it was lifted by. It never falls."""
        return self._lifted + self.service / self.weight

    def lift(self, least: float) -> None:
        """It did not ask for its share while others had theirs: that is no credit."""
        self._lifted += max(0.0, least - self.virtual)

    def reweigh(self, weight: float) -> None:
        """Count with another weight from now on."""
        virtual = self.virtual
        self.weight = weight
        self._lifted = virtual - self.service / weight


@dataclass(frozen=True, slots=True)
class Share:
    """What one tenant has had, for those who watch."""

    tenant: str
    weight: float
    service: int
    """Work done for it: a computed prompt token is 1, a generated one 2."""
    lag: float
    """Service by weight that it is ahead of the least served tenant that waits; 0 for that one, and
    where nobody waits."""
    waiting: int
    """Requests in the queue."""
    started: int
    """Requests that have left the queue."""
    waited: int
    """Steps that these had waited, all together."""


class Accounts:
    """The accounts of all tenants that ever asked for something, and their weights."""

    __slots__ = ("_by_tenant", "_terms")

    def __init__(self) -> None:
        self._by_tenant: dict[str, Account] = {}
        self._terms: dict[str, Terms] = {}

    def of(self, tenant: str) -> Account:
        """The account of ``tenant``; a new one the first time. O(1)."""
        account = self._by_tenant.get(tenant)
        if account is None:
            account = self._by_tenant[tenant] = Account(tenant, self._weight(tenant))
        return account

    def set_terms(self, terms: Mapping[str, Terms]) -> None:
        """Weights from now on; service so far counts as it did. O(tenants)."""
        self._terms = dict(terms)
        for tenant, account in self._by_tenant.items():
            account.reweigh(self._weight(tenant))

    def shares(self) -> list[Share]:
        """One a tenant, in order of their first request. O(tenants)."""
        accounts = self._by_tenant.values()
        least = min((each.virtual for each in accounts if each.waiting), default=None)
        return [
            Share(
                tenant=each.tenant,
                weight=each.weight,
                service=each.service,
                lag=0.0 if least is None else max(0.0, each.virtual - least),
                waiting=each.waiting,
                started=each.started,
                waited=each.waited,
            )
            for each in accounts
        ]

    def _weight(self, tenant: str) -> float:
        terms = self._terms.get(tenant)
        return Terms().weight if terms is None else terms.weight
