"""The requests that wait, in the order in which they will run."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from radixserve.scheduling.request import Request


class WaitingQueue:
    """Waiting requests by rank. A preempted request comes back to the place that it had."""

    __slots__ = ("_by_id", "_ranked")

    def __init__(self) -> None:
        self._ranked: SortedDict[tuple[int, int], Request] = SortedDict()
        self._by_id: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Request]:
        """First to last, as of now: requests may be removed meanwhile. O(requests)."""
        return iter(list(self._ranked.values()))

    def add(self, request: Request) -> None:
        """O(log requests)."""
        self._ranked[request.rank] = request
        self._by_id[request.id] = request

    def remove(self, request: Request) -> None:
        """O(log requests).

        Raises:
            KeyError: it does not wait.
        """
        del self._by_id[request.id]
        del self._ranked[request.rank]

    def get(self, request_id: str) -> Request | None:
        """O(1)."""
        return self._by_id.get(request_id)
