"""A trace against a cache of a size and a policy, block by block, without a model.

A prompt hits as far as it is there from the front; afterwards all of it is there, and blocks go
until what is kept fits, always from the end of a branch. What requests hold while they run, and
what they generate, is left out: hits are those of prompts that end before the next one begins.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from radixserve.cache.admission import Reuse
from radixserve.simulation.paths import Node, path
from radixserve.simulation.trace import Trace

NEVER = float("inf")
OVER = -NEVER
"""The rank of what is known not to be used again: no grace keeps it."""


@dataclass(slots=True)
class Plan:
    """The paths of all requests, in the order in which they come."""

    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)
    """Nodes, by their place in the two below."""
    sizes: list[int] = field(default_factory=list)
    """Blocks of each node."""
    depths: list[int] = field(default_factory=list)
    """Blocks above each node."""
    block_size: int = 1

    @classmethod
    def of(cls, trace: Trace) -> Plan:
        """O(sum of the paths)."""
        plan = cls(block_size=trace.block_size)
        for call in trace.calls:
            plan.times.append(call.time)
            plan.tokens.append(call.tokens)
            plan.paths.append([plan._place(node) for node in path(call.end)])
        return plan

    def _place(self, node: Node) -> int:
        if node.place < 0 or node.place >= len(self.sizes):
            node.place = len(self.sizes)
            self.sizes.append(node.size)
            self.depths.append(node.start)
        return node.place


Ranks = Callable[[int], list[float]]
"""For the request of this index, the rank of each node of its path: the lowest goes first."""


def least_recently_used(plan: Plan) -> Ranks:
    """What was used last stays longest; of what was used together, the front."""
    return lambda place: [float(place)] * len(plan.paths[place])


def optimum(plan: Plan) -> Ranks:
    """What is needed again soonest stays (Belady, 1966), newcomers included: no policy can know
    that, and none hits more."""
    following = [NEVER] * len(plan.sizes)
    ranks: list[list[float]] = []
    for place in range(len(plan.paths) - 1, -1, -1):
        nodes = plan.paths[place]
        ranks.append([-following[node] for node in nodes])
        for node in nodes:
            following[node] = place
    ranks.reverse()
    return ranks.__getitem__


def replay(
    plan: Plan,
    ranks: Ranks,
    blocks: int,
    *,
    ends: Ranks | None = None,
    grace: float = 0.0,
    reuse: Reuse | None = None,
    running: bool = False,
) -> float:
    """The share of prompt tokens that hit, 0 to 1, in a cache of ``blocks`` blocks.

    Args:
        ends: For a request, when each node of its path is given up, in seconds of the trace: what
            was not used again by then goes before all else.
        grace: Seconds for which nothing that was used goes to make room for a newcomer: what does
            not fit beside it is not kept.
        reuse: learns this grace from the ages of what is used again and of what goes.
        running: A request needs all of its prompt there while it runs: others go for it, also where
            they are of more use than what it leaves.
    """
    kept = _Kept(plan, blocks, reuse)
    hits = 0
    for place, nodes in enumerate(plan.paths):
        now = plan.times[place]
        if running and sum(plan.sizes[node] for node in nodes) > blocks:
            continue  # it does not fit, and is not served
        had = kept.reach(nodes, now)
        hits += min(had * plan.block_size, plan.tokens[place] - 1)
        if running:
            kept.take(nodes, [NEVER] * len(nodes), now)
            kept.shrink(now, 0.0, nodes, had)
        kept.take(nodes, ranks(place), now)
        if ends is not None:
            kept.give_up(nodes, ends(place), now)
        kept.shrink(now, grace if reuse is None else reuse.patience, nodes, had)
    return hits / max(sum(plan.tokens), 1)


class _Kept:
    """Which blocks of which nodes are there: of each node, from its front."""

    def __init__(self, plan: Plan, blocks: int, reuse: Reuse | None):
        self._reuse = reuse
        self._sizes, self._depths = plan.sizes, plan.depths
        self._blocks = blocks
        self._have = [0] * len(plan.sizes)
        self._ranks = [NEVER] * len(plan.sizes)
        self._used_at = [-NEVER] * len(plan.sizes)
        self._order: list[tuple[float, int, int]] = []
        """Rank, depth, node; entries whose rank is no longer the node's are passed over."""
        self._ends: list[tuple[float, float, int]] = []
        """When it ends, when the node was used last as this was said, node."""
        self._total = 0

    def reach(self, nodes: list[int], now: float) -> int:
        """Blocks that are there from the front."""
        reached = last = 0
        used_at = -NEVER
        for node in nodes:
            if not self._have[node]:
                break
            last = last if self._used_at[node] == used_at else reached
            used_at = self._used_at[node]
            reached += self._have[node]
            if self._have[node] < self._sizes[node]:
                break
        if self._reuse is not None and reached:
            # What is shared with others was used later than the end that only this path has.
            self._reuse.used(now - used_at, reached - last)
        return reached

    def take(self, nodes: list[int], ranks: list[float], now: float) -> None:
        """All of the path is there."""
        for node, rank in zip(nodes, ranks, strict=True):
            self._total += self._sizes[node] - self._have[node]
            self._have[node] = self._sizes[node]
            self._ranks[node] = rank
            self._used_at[node] = now
            heapq.heappush(self._order, (rank, -self._depths[node], node))

    def give_up(self, nodes: list[int], ends: list[float], now: float) -> None:
        """What ended before ``now``, and note when those of ``nodes`` will, just used."""
        for node, end in zip(nodes, ends, strict=True):
            if end < NEVER:
                heapq.heappush(self._ends, (end, now, node))
        while self._ends and self._ends[0][0] < now:
            _, used_at, node = heapq.heappop(self._ends)
            if self._used_at[node] == used_at and self._have[node]:
                self._ranks[node] = OVER
                heapq.heappush(self._order, (OVER, -self._depths[node], node))

    def shrink(self, now: float, grace: float, nodes: list[int], had: int) -> None:
        """Let go of what is too much, first of what has the lowest rank; of the newcomer on the
        path ``nodes``, behind the ``had`` blocks that were there before, where only it may go."""
        while self._total > self._blocks:
            rank, _, node = self._order[0]
            if self._ranks[node] != rank or not self._have[node]:
                heapq.heappop(self._order)
                continue
            if now - self._used_at[node] < grace and rank > OVER:
                break
            self._drop(node, now)
        for node in reversed(nodes):
            if self._total <= self._blocks:
                return
            self._drop(node, now, keep=max(0, had - self._depths[node]))

    def _drop(self, node: int, now: float, keep: int = 0) -> None:
        gone = min(self._have[node] - keep, self._total - self._blocks)
        if gone > 0:
            self._have[node] -= gone
            self._total -= gone
            if self._reuse is not None:
                self._reuse.gone(now - self._used_at[node], gone)
