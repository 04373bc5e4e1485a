"""An engine without a model: the real scheduler and prefix cache, and a clock that steps move on.

A step lasts as long as a memory-bound base and the tokens that it computes, which is how steps of
real engines behave below saturation. Nothing is random but what the caller draws, so that two
orders of the queue are compared on exactly the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.config import EngineConfig
from radixserve.scheduling.plan import Sampled
from radixserve.scheduling.queue import WaitingQueue
from radixserve.scheduling.request import Request
from radixserve.scheduling.sampling import SamplingParams
from radixserve.scheduling.scheduler import Scheduler

STEP_SECONDS = 0.010
TOKEN_SECONDS = 25e-6
"""What a step takes, and each token in it: an 8B model on one GPU, roughly."""
BUDGET = 1024
"""Tokens of a full step."""


@dataclass(slots=True)
class Seen:
    """One request's life, in seconds of the simulated clock."""

    tenant: str
    asked: float
    first: float | None = None
    cached: int = 0
    """Prompt tokens that were reused."""


Order = Callable[[WaitingQueue], list[Request]]


class Reordered:
    """A waiting queue whose requests start in another order; all else is the queue's."""

    def __init__(self, queue: WaitingQueue, order: Order):
        self._queue, self._order = queue, order

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def in_turn(self) -> Iterator[Request]:
        return iter(self._order(self._queue))


def first_come(queue: WaitingQueue) -> list[Request]:
    """Everybody in one line."""
    return sorted(queue, key=lambda each: each.rank)


def longest_prefix(queue: WaitingQueue) -> list[Request]:
    """Whoever finds most in the cache, however long others have waited."""
    return sorted(queue, key=lambda each: (-queue.outlook.reusable(each), each.arrival))


@dataclass(slots=True)
class Engine:
    """Scheduler, cache and clock."""

    scheduler: Scheduler
    now: float = 0.0
    steps: int = 0
    seen: dict[str, Seen] = field(default_factory=dict)

    @classmethod
    def of(
        cls, pages: int, order: Order | None = None, *, seats: int = 64, passes: int = 64
    ) -> Engine:
        """An engine that serves in ``order``, or in its own with so many ``passes``."""
        config = EngineConfig(
            num_pages=pages,
            max_num_seqs=seats,
            max_num_batched_tokens=BUDGET,
            max_passes=passes,
            max_queue=1_000_000,
        )
        cache = PrefixCache(pages, config.page_size)
        scheduler = Scheduler(cache, config, max_model_len=1_000_000)
        if order is not None:
            scheduler.waiting = Reordered(scheduler.waiting, order)  # type: ignore[assignment]
        return cls(scheduler)

    def ask(self, name: str, tokens: bytes, output: int, tenant: str = "") -> None:
        """A request for ``output`` tokens comes now."""
        sampling = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
        self.scheduler.add(name, tokens, sampling, namespace=tenant.encode(), tenant=tenant)
        self.seen[name] = Seen(tenant, self.now)

    def step(self) -> list[str]:
        """One step; returns who has ended."""
        plan = self.scheduler.plan()
        assert plan is not None, "work waits and nothing is planned"
        self.now += STEP_SECONDS + TOKEN_SECONDS * plan.tokens
        self.steps += 1
        sampled = [
            (Sampled(self.steps % 50_000),) * (1 + len(row.forks)) if row.sampling else ()
            for row in plan.rows
        ]
        ended = []
        for each in self.scheduler.commit(plan, sampled):
            seen = self.seen[each.request.id]
            if seen.first is None:
                seen.first = self.now
                seen.cached = each.request.cached or 0
            if each.finish is not None:
                ended.append(each.request.id)
        return ended

    @property
    def hit_rate(self) -> float:
        """Share of all prompt tokens that were reused, 0 to 1."""
        totals = self.scheduler.totals
        return totals.cached_tokens / max(totals.prompt_tokens, 1)
