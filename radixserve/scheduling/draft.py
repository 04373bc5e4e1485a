"""A step while it is being planned."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixserve.cache.lease import Lease
from radixserve.scheduling.plan import Row


@dataclass(slots=True)
class Draft:
    """The rows so far and the tokens that are left of the budget."""

    budget: int
    decoding: dict[str, Row] = field(default_factory=dict)
    chunks: dict[str, Row] = field(default_factory=dict)
    """The rows of those that have not sampled a token yet, or not since they were preempted."""
    copying: list[Lease] = field(default_factory=list)
    """Leases of these rows that wait for copies; one that is preempted waits no more."""

    def put(self, row: Row) -> None:
        self.chunks[row.request_id] = row
        self.budget -= row.count

    def drop(self, request_id: str) -> None:
        row = self.decoding.pop(request_id, None) or self.chunks.pop(request_id, None)
        if row is not None:
            self.budget += row.count
