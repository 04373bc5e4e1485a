"""One tenant's waiting requests of one priority, and which of them should start first."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from sortedcontainers import SortedDict, SortedList

from radixserve.scheduling.request import Request

LOOK_UPS = 64
"""Newcomers of a tenant that are looked up in a plan; the others later, as far as it matters."""


class Outlook(Protocol):
    """What waiting requests find in the cache."""

    def reusable(self, request: Request) -> int:
        """Tokens of its whole blocks that are cached now. Free when it was asked in this plan."""

    def changed(self) -> Iterable[Request]:
        """Those for which more may be cached than when they were asked about."""

    def forget(self, request: Request) -> None:
        """It does not wait any more."""


class Backlog:
    """Requests by arrival, by deadline those that have one, and by what is cached for them."""

    __slots__ = ("_ahead", "_places", "_unknown", "by_arrival", "by_deadline", "by_match")

    def __init__(self) -> None:
        self.by_arrival: SortedDict[int, Request] = SortedDict()
        self.by_deadline: SortedDict[tuple[float, int], Request] = SortedDict()
        self.by_match: SortedDict[tuple[int, int], Request] = SortedDict()
        """The longest cached prefix first, those of equal length as they came."""
        self._places: dict[int, tuple[int, int]] = {}
        self._unknown: SortedDict[int, Request] = SortedDict()
        """Those to be looked up, by arrival."""
        self._ahead: SortedList[int] = SortedList()
        """Arrivals of those that have started although the first in line came earlier."""

    def __len__(self) -> int:
        return len(self.by_arrival)

    def add(self, request: Request) -> None:
        """O(log requests)."""
        self.by_arrival[request.arrival] = self._unknown[request.arrival] = request
        if request.deadline is not None:
            self.by_deadline[request.deadline, request.arrival] = request

    def remove(self, request: Request, *, started: bool = False) -> None:
        """It has started, or does not wait any more. O(log requests), amortised."""
        self.look_again(request)
        del self._unknown[request.arrival]
        del self.by_arrival[request.arrival]
        if request.deadline is not None:
            del self.by_deadline[request.deadline, request.arrival]
        if started:
            self._ahead.add(request.arrival)
        if self.by_arrival:
            first, _ = self.by_arrival.peekitem(0)
            while self._ahead and self._ahead[0] < first:
                del self._ahead[0]

    def passes(self, request: Request) -> int:
        """How many that came later have started before ``request``. O(log of them).

        Whoever came earlier has been passed by at least as many.
        """
        return len(self._ahead) - self._ahead.bisect_right(request.arrival)

    def look_again(self, request: Request) -> None:
        """More may be cached for it than when it was looked up. O(log requests)."""
        place = self._places.pop(request.arrival, None)
        if place is not None:
            self._unknown[request.arrival] = self.by_match.pop(place)

    def look_up(self, outlook: Outlook) -> int:
        """Find out what is cached for the next of those for which it is not known; returns how many
        there were. O(LOOK_UPS · (log requests + what a look into the cache costs))."""
        found = list(islice(self._unknown.values(), LOOK_UPS))
        for request in found:
            del self._unknown[request.arrival]
            self.put(request, outlook.reusable(request))
        return len(found)

    def put(self, request: Request, match: int) -> None:
        """So much is cached for it. O(log requests)."""
        place = self._places.pop(request.arrival, None)
        if place is not None:
            del self.by_match[place]
        place = self._places[request.arrival] = (-match, request.arrival)
        self.by_match[place] = request


class Candidates:
    """A backlog's requests, each once, in the order in which they should start.

    Who has been passed ``max_passes`` times goes first. Then come deadlines, the earliest first;
    then the longest cached prefix, so that those who share it stand together; then first come,
    first served.
    """

    __slots__ = ("_arrived", "_backlog", "_first", "_given", "_most", "_outlook", "_place",
                 "_urgent")  # fmt: skip

    def __init__(self, backlog: Backlog, outlook: Outlook, max_passes: int):
        self._backlog, self._outlook, self._most = backlog, outlook, max_passes
        self._arrived = list(backlog.by_arrival.values())
        self._urgent = iter(list(backlog.by_deadline.values()))
        self._given: set[int] = set()
        self._first = 0
        self._place = 0
        """All before it in the order of matches were given."""

    def next(self) -> Request | None:
        """O(log requests), and a look into the cache for each that was not looked up in this plan.

        Who was given before has started, or has to wait.
        """
        arrived = self._arrived
        while self._first < len(arrived) and arrived[self._first].arrival in self._given:
            self._first += 1
        if self._first == len(arrived):
            return None
        first = arrived[self._first]
        if self._backlog.passes(first) >= self._most:
            chosen = first
        else:
            chosen = self._earliest() or self._longest()
        self._given.add(chosen.arrival)
        return chosen

    def _earliest(self) -> Request | None:
        return next((each for each in self._urgent if each.arrival not in self._given), None)

    def _longest(self) -> Request:
        backlog = self._backlog
        if not self._given:
            backlog.look_up(self._outlook)
        while True:
            if self._place >= len(backlog.by_match):
                backlog.look_up(self._outlook)
                self._place = 0
            (match, arrival), request = backlog.by_match.peekitem(self._place)
            if arrival in self._given:
                self._place += 1
                continue
            now = self._outlook.reusable(request)
            if now >= -match:
                return request
            # Some of it has been evicted since.
            backlog.put(request, now)
