"""A step while it is being planned."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixserve.cache.lease import Lease
from radixserve.scheduling.plan import Row
from radixserve.scheduling.request import Request
from radixserve.tokens import TOKEN_BYTES


@dataclass(slots=True)
class Draft:
    """The rows so far and the tokens that are left of the budget."""

    budget: int
    rows: dict[str, Row] = field(default_factory=dict)
    copying: list[Lease] = field(default_factory=list)
    """Leases of these rows that wait for copies; one that is preempted waits no more."""

    def put(self, request: Request, lease: Lease, count: int) -> None:
        """Plan the next ``count`` tokens of ``request``."""
        start, tokens = lease.computed, request.tokens
        end = start + count
        # By position: half the time of keywords, for what is made for every token.
        self.rows[request.id] = Row(
            request.id,
            tokens[start * TOKEN_BYTES : end * TOKEN_BYTES],
            start,
            lease.pages,
            request.sampling if end == request.known else None,
            tokens,
            request.prompt_length,
        )
        self.budget -= count
        if lease.pending:
            self.copying.append(lease)

    def drop(self, request_id: str) -> None:
        row = self.rows.pop(request_id, None)
        if row is not None:
            self.budget += row.count
