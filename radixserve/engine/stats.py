"""What an engine counts."""

from __future__ import annotations

from msgspec.structs import replace

from radixserve.config import EngineConfig
from radixserve.engine.messages import EngineStats, Ready
from radixserve.engine.tenants import tenant_stats
from radixserve.model.info import ModelInfo
from radixserve.scheduling.load import pending_tokens
from radixserve.scheduling.scheduler import Scheduler


def stats_of(scheduler: Scheduler, steps: int, *, whole: bool) -> EngineStats:
    """Gauges and totals as of now, after so many steps. O(1), and where they are to be ``whole``
    O(tenants + requests)."""
    totals, cache = scheduler.totals, scheduler.cache
    keeps = cache.accounts.keeps
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
        keeps=replace(keeps, refused=dict(keeps.refused)) if whole else None,
    )


def ready(info: ModelInfo, config: EngineConfig, stats: EngineStats) -> Ready:
    """What an engine says of itself once it can begin."""
    return Ready(
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        embedding_size=info.embedding_size,
        defaults=info.sampling_defaults,
        eos_token_ids=info.eos_token_ids,
        most=config.max_num_seqs + config.max_queue,
        stats=stats,
    )
