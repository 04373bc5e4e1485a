"""What tenants use, as Prometheus metrics with a bounded number of labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from prometheus_client import CollectorRegistry, Counter, Summary
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from radixserve.engine.messages import EngineStats, TenantStats
from radixserve.server.tenants.visit import Visit
from radixserve.tenant import OPEN

MOST_NAMES = 100
"""Tenants with metrics of their own."""
OTHERS = "other"
PREFIX = "radixserve:tenant_"


GAUGES: dict[str, tuple[str, Callable[[TenantStats], float]]] = {
    "kv_pages_cached": ("Pages that are cached and not in use.", lambda of: of.pages_cached),
    "kv_pages_held": ("Pages that running requests hold.", lambda of: of.pages_held),
    "kv_pages_kept": ("Pages that are kept for a time.", lambda of: of.pages_kept),
    "kv_pages_keep_budget": ("Pages that may be kept at once.", lambda of: of.keep_budget),
    "evicted_pages": ("Pages of it that were evicted lately.", lambda of: of.evictions_suffered),
    "evictions_caused": ("Pages evicted for it lately.", lambda of: of.evictions_caused),
    "service_lag": ("Service by weight ahead of the least served one.", lambda of: of.lag),
    "requests_waiting": ("Requests that wait for a place.", lambda of: of.waiting),
}
"""Totals begin anew with the engine, and when a tenant goes: they are no counters."""


class TenantMetrics:
    """Labelled with names of the file of tenants, the first ones in it; never with keys.

    A name that has had metrics once keeps them, so that no count ever falls. An open server, which
    has no tenants, has none.
    """

    def __init__(self, registry: CollectorRegistry, tenants: Callable[[], Iterable[str]]):
        self._registry = registry
        self._tenants = tenants
        self._named: set[str] = set()
        self.requests = self._counter("requests", "Requests that count against limits.")
        self.refused = self._counter("refused", "Requests over a limit of the tenant.", "limit")
        self.prompt = self._counter("prompt_tokens", "Prompt tokens.")
        self.cached = self._counter("prompt_tokens_cached", "Prompt tokens that were reused.")
        self.generated = self._counter("generation_tokens", "Tokens generated.")
        self.queue = self._summary("queue_time_seconds", "Seconds in the queue.")
        self.first_token = self._summary(
            "time_to_first_token_seconds",
            "Seconds until the first token, in the queue and in the prefill.",
        )

    def label(self, tenant: str) -> str:
        if tenant not in self._named and len(self._named) < MOST_NAMES:
            new = (name for name in self._tenants() if name not in self._named)
            self._named.update(islice(new, MOST_NAMES - len(self._named)))
        return tenant if tenant in self._named else OTHERS

    def count(self, model: str, visit: Visit) -> None:
        """A request to a server of ``model`` has ended."""
        if visit.tenant.name == OPEN or not visit.limited:
            return
        labels = (model, self.label(visit.tenant.name))
        usage = visit.tally.usage()
        self.requests.labels(*labels).inc()
        self.prompt.labels(*labels).inc(usage.prompt_tokens)
        self.cached.labels(*labels).inc(usage.prompt_tokens_details.cached_tokens)
        self.generated.labels(*labels).inc(usage.completion_tokens)
        if visit.over is not None:
            self.refused.labels(*labels, visit.over).inc()

    def of_engine(self, model: str, stats: EngineStats) -> Iterable[Metric]:
        """What the engine knows of tenants, as of its last step but a few."""
        if not self._tenants():
            return
        for name, (help_, value) in GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, help_, labels=["model_name", "tenant"])
            sums: dict[str, float] = {}
            for tenant, counts in stats.tenants.items():
                if tenant == OPEN:
                    continue  # it is nobody's where there are tenants
                label = self.label(tenant)
                sums[label] = sums.get(label, 0.0) + value(counts)
            for label, total in sums.items():
                gauge.add_metric([model, label], total)
            yield gauge

    def waited(self, model: str, tenant: str, seconds: float) -> None:
        """A prompt has left the queue after ``seconds``."""
        if tenant != OPEN:
            self.queue.labels(model, self.label(tenant)).observe(seconds)

    def began(self, model: str, tenant: str, seconds: float) -> None:
        """The first token has come after ``seconds``."""
        if tenant != OPEN:
            self.first_token.labels(model, self.label(tenant)).observe(seconds)

    def _summary(self, name: str, help_: str) -> Summary:
        names = ["model_name", "tenant"]
        return Summary(PREFIX + name, help_, names, registry=self._registry)

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        names = ["model_name", "tenant", *labels]
        return Counter(PREFIX + name, help_, names, registry=self._registry)
