"""What an engine counts."""

from __future__ import annotations

from radixserve.engine.messages import EngineStats
from radixserve.engine.tenants import tenant_stats
from radixserve.scheduling.load import pending_tokens
from radixserve.scheduling.scheduler import Scheduler


def stats_of(scheduler: Scheduler, steps: int, *, whole: bool) -> EngineStats:
    """Gauges and totals as of now, after so many steps. O(1), and where they are to be ``whole``
    O(tenants + requests)."""
    totals, cache = scheduler.totals, scheduler.cache
    return EngineStats(
        steps=steps,
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        pages_total=cache.pool.num_pages - 1,
        pages_free=cache.pool.free,
        pages_evictable=cache.tree.evictable,
        prompt_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
        computed_tokens=totals.computed_tokens,
        generated_tokens=totals.generated_tokens,
        preemptions=totals.preemptions,
        evicted_pages=cache.evicted,
        radix_nodes=cache.tree.nodes,
        finished=dict(totals.finished),
        pending_tokens=pending_tokens(scheduler) if whole else None,
        public_pages=cache.accounts.public.used,
        tenants=tenant_stats(scheduler) if whole else {},
    )
