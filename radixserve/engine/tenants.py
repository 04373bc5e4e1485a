"""What each tenant has had of cache and engine."""

from __future__ import annotations

from msgspec.structs import replace

from radixserve.engine.messages import TenantStats
from radixserve.scheduling.scheduler import Scheduler


def tenant_stats(scheduler: Scheduler) -> dict[str, TenantStats]:
    """Of those that have pages or terms, or ever asked for something. O(tenants)."""
    found = {
        share.tenant: TenantStats(
            service=share.service,
            lag=share.lag,
            waiting=share.waiting,
            started=share.started,
            waited=share.waited,
        )
        for share in scheduler.accounts.shares()
    }
    for account in scheduler.cache.accounts.tenants():
        found[account.tenant] = replace(
            found.get(account.tenant, TenantStats()),
            pages_cached=account.cold,
            pages_held=account.used - account.cold,
            pages_kept=account.kept.total(scheduler.cache.time),
            keep_budget=account.quota.keep,
            evictions_suffered=account.suffered,
            evictions_caused=account.caused,
        )
    return found
