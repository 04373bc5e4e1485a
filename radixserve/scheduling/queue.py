"""The requests that wait, and in which order they start."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from radixserve.scheduling.account import Account
from radixserve.scheduling.backlog import Backlog, Candidates, Outlook
from radixserve.scheduling.request import Request
from radixserve.scheduling.turns import Turns


class PriorityClass:
    """Waiting requests of one priority: those that go on, then tenants in turn."""

    __slots__ = ("_backlogs", "resumed", "turns")

    def __init__(self, quantum: float):
        self.resumed: SortedDict[int, Request] = SortedDict()
        """Those that ran already, by arrival: they keep their place before all newcomers."""
        self._backlogs: dict[str, Backlog] = {}
        self.turns = Turns(quantum)

    def __bool__(self) -> bool:
        return bool(self.resumed or self._backlogs)

    def add(self, request: Request) -> None:
        """O(log requests + log tenants)."""
        if request.resumes:
            self.resumed[request.arrival] = request
            return
        backlog = self._backlogs.get(request.tenant)
        if backlog is None:
            backlog = self._backlogs[request.tenant] = Backlog()
            self.turns.join(request.account)
        backlog.add(request)

    def remove(self, request: Request, *, started: bool) -> None:
        """O(log requests + log tenants)."""
        if request.resumes:
            del self.resumed[request.arrival]
            return
        backlog = self._backlogs[request.tenant]
        backlog.remove(request, started=started)
        if not backlog:
            del self._backlogs[request.tenant]
            self.turns.leave(request.account)

    def look_again(self, request: Request) -> None:
        """More may be cached for it than when it was looked up. O(log requests)."""
        if not request.resumes:
            self._backlogs[request.tenant].look_again(request)

    def in_turn(self, outlook: Outlook, max_passes: int) -> Iterator[Request]:
        """The newcomers, each once, as ``WaitingQueue.in_turn`` says."""
        looks: dict[str, Candidates] = {}
        self.turns.begin()
        while (account := self.turns.next()) is not None:
            tenant = account.tenant
            if tenant not in looks:
                looks[tenant] = Candidates(self._backlogs[tenant], outlook, max_passes)
            request = looks[tenant].next()
            if request is not None:
                yield request
            else:
                self.turns.pass_over(account)


class WaitingQueue:
    """Waiting requests: priority classes, in each of them tenants in turn, and of each tenant those
    that were passed too often, those with deadlines, those for whom most is cached.

    Args:
        outlook: what waiting requests find in the cache.
        max_passes: how many of its tenant's later requests may start before a request; with 0 each
            tenant is served strictly first come, first served.
        quantum: virtual time that a tenant's turn lasts; see ``Turns``.
    """

    __slots__ = ("_by_id", "_classes", "_last", "_max_passes", "_quantum", "_siblings", "outlook")

    def __init__(self, outlook: Outlook, *, max_passes: int, quantum: float) -> None:
        self.outlook = outlook
        self._max_passes, self._quantum = max_passes, quantum
        self._by_id: dict[str, Request] = {}
        self._classes: SortedDict[int, PriorityClass] = SortedDict()
        self._siblings: dict[str, dict[str, Request]] = {}
        self._last: Account | None = None
        """Of whom a request left the queue last."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Request]:
        """As of now, as they came to wait: requests may be removed meanwhile. O(requests)."""
        return iter(list(self._by_id.values()))

    def get(self, request_id: str) -> Request | None:
        """O(1)."""
        return self._by_id.get(request_id)

    def siblings(self, request_id: str) -> list[Request]:
        """Those that wait for the same prompt as ``request_id``, the first of them. O(those)."""
        return list(self._siblings.get(request_id, {}).values())

    def add(self, request: Request) -> None:
        """O(log requests + log tenants)."""
        account = request.account
        if not account.waiting and not request.resumes:
            account.lift(self._least())
        account.waiting += 1
        self._by_id[request.id] = request
        if request.sibling is not None:
            self._siblings.setdefault(request.sibling, {})[request.id] = request
        if request.priority not in self._classes:
            self._classes[request.priority] = PriorityClass(self._quantum)
        self._classes[request.priority].add(request)

    def start(self, request: Request) -> None:
        """It runs from now on. O(log requests + log tenants).

        Raises:
            KeyError: it does not wait.
        """
        self._remove(request, started=True)

    def remove(self, request: Request) -> None:
        """It ends without having run. O(log requests + log tenants).

        Raises:
            KeyError: it does not wait.
        """
        self._remove(request, started=False)

    def in_turn(self) -> Iterator[Request]:
        """The order in which they should start, each once.

        The iterator follows what is done with them: who still waits when the next is asked for has
        been deferred, and those behind it may go first. None may be added but by preemption.
        """
        for request in self.outlook.changed():
            self._classes[request.priority].look_again(request)
        # Who is preempted meanwhile, for a request of a better class, is not among them.
        for each, resumed in [(c, list(c.resumed.values())) for c in self._classes.values()]:
            yield from resumed
            yield from each.in_turn(self.outlook, self._max_passes)

    def ahead_of(self, priority: int) -> list[Request]:
        """Those of a better class, in no particular order. O(requests)."""
        if not self._classes or self.best >= priority:
            return []
        return [each for each in self._by_id.values() if each.priority < priority]

    @property
    def best(self) -> int:
        """The class of those that go first; there has to be one that waits. O(1)."""
        priority: int = self._classes.peekitem(0)[0]
        return priority

    def _remove(self, request: Request, *, started: bool) -> None:
        del self._by_id[request.id]
        self.outlook.forget(request)
        if request.sibling is not None:
            siblings = self._siblings[request.sibling]
            del siblings[request.id]
            if not siblings:
                del self._siblings[request.sibling]
        each = self._classes[request.priority]
        each.remove(request, started=started)
        if not each:
            del self._classes[request.priority]
        request.account.waiting -= 1
        self._last = request.account

    def _least(self) -> float:
        """What a tenant that begins to wait is lifted to: the least of those that wait; where
        nobody does, what the last one that did has by now (Sheng et al., algorithm 2)."""
        for each in self._classes.values():
            each.turns.begin()
        firsts = [each.turns.least() for each in self._classes.values()]
        waiting = [account.virtual for account in firsts if account is not None]
        if waiting:
            return min(waiting)
        return 0.0 if self._last is None else self._last.virtual
