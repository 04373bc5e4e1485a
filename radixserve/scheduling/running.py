"""The requests that run, in the order in which they are served."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from radixserve.scheduling.request import MAX_PREEMPTIONS, Request


class RunningRequests:
    """Running requests by id, and by rank. Sorted only when they, or their ranks, have changed."""

    __slots__ = ("_ranked", "by_id")

    def __init__(self) -> None:
        self.by_id: dict[str, Request] = {}
        self._ranked: list[Request] | None = None

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[str]:
        """Their ids."""
        return iter(self.by_id)

    def get(self, request_id: str | None) -> Request | None:
        """O(1)."""
        return self.by_id.get(request_id) if request_id else None

    def add(self, request: Request) -> None:
        """O(1), and the next look at the order sorts."""
        self.by_id[request.id] = request
        self._ranked = None

    def remove(self, request: Request) -> None:
        """O(1), and the next look at the order sorts."""
        del self.by_id[request.id]
        self._ranked = None

    def by_rank(self) -> list[Request]:
        """First to last. O(1) while nothing has changed, else O(requests · log requests)."""
        if self._ranked is None:
            self._ranked = sorted(self.by_id.values(), key=attrgetter("rank"))
        return self._ranked

    def lend(self, request: Request, priority: int) -> None:
        """``request`` goes first as far as ``priority`` does: others wait for what it computes."""
        if priority < request.priority:
            request.priority = priority
            self._ranked = None

    def victim(self, rank: tuple[int, int], *, pages_for: str | None = None) -> Request | None:
        """The last that comes after ``rank`` and may still be preempted; with ``pages_for``, whose
        pages are not guaranteed to another tenant than that. O(requests)."""
        later = [
            request
            for request in self.by_id.values()
            if request.rank > rank and request.preemptions < MAX_PREEMPTIONS
            if pages_for is None or (request.lease and request.lease.yields_to(pages_for))
        ]
        return max(later, key=attrgetter("rank"), default=None)
