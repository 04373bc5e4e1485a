"""A scheduler's state in words, for the log of a fault; never what anybody asked."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from radixserve.scheduling.request import Request
from radixserve.scheduling.scheduler import Scheduler

MOST = 16
"""Requests of each kind that are named."""


def describe(scheduler: Scheduler) -> str:
    """Who runs, who waits and where the pages are, in one line. O(running + waiting)."""
    kinds: dict[str, Iterable[Request]] = {
        "running": scheduler.running.by_rank(),
        "waiting": scheduler.waiting,
    }
    named = [
        f"{request.id}: {kind}, {request.computed}/{request.known} tokens of {request.limit}, "
        f"preempted {request.preemptions}x"
        for kind, requests in kinds.items()
        for request in islice(requests, MOST)
    ]
    pool, tree = scheduler.cache.pool, scheduler.cache.tree
    counts = (
        f"{len(scheduler.running)} running, {len(scheduler.waiting)} waiting, "
        f"{pool.free} pages free, {tree.evictable} cold, {pool.num_pages - 1} in all"
    )
    return "; ".join([counts, *named])
