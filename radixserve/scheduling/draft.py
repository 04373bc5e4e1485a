"""A step while it is being planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from radixserve.cache.lease import Lease
from radixserve.scheduling.plan import MAX_SCORED, UNKNOWN, Fork, Row, StepPlan
from radixserve.scheduling.queue import WaitingQueue
from radixserve.scheduling.request import MAX_PREEMPTIONS, Request


@dataclass(slots=True)
class Draft:
    """The rows so far and the tokens that are left of the budget."""

    budget: int
    scores: int = MAX_SCORED
    """Tokens of prompts that may still be scored."""
    decoding: dict[str, Row] = field(default_factory=dict)
    chunks: dict[str, Row] = field(default_factory=dict)
    """The rows of those that have not sampled a token yet, or not since they were preempted."""
    copying: list[Lease] = field(default_factory=list)
    """Leases of these rows that wait for copies; one that is preempted waits no more."""
    behind: StepPlan | None = None
    """The plan that is being computed meanwhile; what follows is about its requests."""
    reached: dict[str, int] = field(default_factory=dict)
    """Their tokens up to the last one that it computes, also of those that have ended."""
    ready: list[Request] = field(default_factory=list)
    """Those whose prompt it completes: the last blocks are not published yet."""
    promised: int = 0
    """Seats of forks that begin to run when it is committed."""

    def put(self, row: Row) -> None:
        self.chunks[row.request_id] = row
        self.budget -= row.count
        self.scores -= len(row.scores)

    def drop(self, request_id: str) -> None:
        row = self.decoding.pop(request_id, None) or self.chunks.pop(request_id, None)
        if row is not None:
            self.budget += row.count
            self.scores += len(row.scores)

    def start(self, request: Request) -> int:
        """The first token of ``request`` that is neither computed nor being computed. O(1)."""
        return self.reached.get(request.id, request.computed)

    def end(self, request: Request, start: int, most: int) -> int:
        """How far ``request`` is computed from ``start`` on: by ``most`` tokens, as far as there
        are so many, as the budget goes, and as what is scored of its prompt may be scored now.
        O(1)."""
        end = min(request.known, start + most, start + self.budget)
        scores = request.unscored(start, end)
        return scores.start + self.scores if len(scores) > self.scores else end

    def go_on(self, plan: StepPlan, running: Mapping[str, Request]) -> None:
        """This step comes behind ``plan``, whose tokens nobody has seen.

        Of its requests one that samples gets a row for the token that is being chosen. It gets
        none, and waits for the commit, where that token is its last, or where others fork off it:
        they share the block that it would go on writing. O(rows).
        """
        self.behind = plan
        for index, row in enumerate(plan.rows):
            self.reached[row.request_id] = row.context
            request = running.get(row.request_id)
            if request is None or row.sampling is None:
                continue
            if index >= plan.decoding:
                self.ready.append(request)
                self.promised += len(row.forks)
            if row.forks or row.context + 1 >= request.limit:
                request.row = None
            else:
                request.row = Row(
                    row.request_id,
                    UNKNOWN,
                    row.context,
                    row.pages,
                    row.sampling,
                    row.history,
                    row.prompt_length,
                    matcher=row.matcher,
                )

    def plan_forks(self, waiting: WaitingQueue, running: Mapping[str, Request], seats: int) -> None:
        """Let the siblings of requests whose prompt this step completes fork off them, as far as
        there are seats. O(chunks + forks)."""
        for row in self.chunks.values():
            # One that was preempted twice has all the pages it needs; a fork would share one.
            if (
                row.sampling is None
                or row.generated
                or running[row.request_id].preemptions >= MAX_PREEMPTIONS
            ):
                continue
            for request in waiting.siblings(row.request_id):
                if seats < 1:
                    return
                if request.cached is None:
                    row.forks.append(Fork(request.id, request.sampling))
                    seats -= 1
