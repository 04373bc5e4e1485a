"""Prometheus metrics: vLLM's names under the prefix ``radixserve:``, one registry per app."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from radixserve.cache.terms import Reason
from radixserve.engine.frontend import Frontend, TextDelta
from radixserve.engine.messages import EngineStats, Usage
from radixserve.explain.reason import Explanation
from radixserve.server.metrics_compat import Compatible, Peer, families
from radixserve.server.tenants.metrics import TenantMetrics
from radixserve.tenant import OPEN

PREFIX = "radixserve:"
Buckets = tuple[float, ...]
TTFT: Buckets = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
ITL: Buckets = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
LATENCY: Buckets = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
TOKENS: Buckets = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))

GAUGES: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "num_requests_running": ("Requests in the current batch.", lambda s: s.running),
    "num_requests_waiting": ("Requests that wait for a place.", lambda s: s.waiting),
    "pending_tokens": (
        "Known tokens, not cached, to be computed until all requests have their first one.",
        lambda s: s.pending_tokens or 0,
    ),
    "kv_cache_usage_perc": (
        "Share of the KV pages in use by running requests, 0 to 1.",
        lambda s: _share_in_use(s),
    ),
    "kv_pages_evictable": ("Pages that are cached and not in use.", lambda s: s.pages_evictable),
    "kv_pages_free": ("Pages that hold nothing.", lambda s: s.pages_free),
    "kv_pages_public": ("Pages of public prefixes.", lambda s: s.public_pages),
    "kv_pages_kept": (
        "Pages that are kept for a time.",
        lambda s: sum(each.pages_kept for each in s.tenants.values()),
    ),
    "kv_pages_keep_budget": (
        "Pages that may be kept at once, of all tenants together.",
        lambda s: _budget(s),
    ),
    "radix_nodes": ("Nodes of the prefix tree.", lambda s: s.radix_nodes),
}
COUNTERS: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "prompt_tokens": ("Prompt tokens of admitted requests.", lambda s: s.prompt_tokens),
    "prompt_tokens_cached": (
        "Prompt tokens that were reused, not computed.",
        lambda s: s.cached_tokens,
    ),
    "prefix_cache_queries": ("Tokens looked up in the prefix cache.", lambda s: s.prompt_tokens),
    "prefix_cache_hits": ("Tokens found in the prefix cache.", lambda s: s.cached_tokens),
    "computed_tokens": (
        "Tokens that went through the model, again after preemption included.",
        lambda s: s.computed_tokens,
    ),
    "generation_tokens": ("Tokens generated.", lambda s: s.generated_tokens),
    "num_preemptions": ("Requests that stepped back.", lambda s: s.preemptions),
    "evicted_pages": ("Pages evicted from the cache.", lambda s: s.evicted_pages),
    "keep_refreshed": (
        "Hits that began the time of kept pages anew.",
        lambda s: 0 if s.keeps is None else s.keeps.refreshed,
    ),
    "keep_expired_pages": (
        "Pages that were kept until their time was over.",
        lambda s: 0 if s.keeps is None else s.keeps.expired,
    ),
    "steps": ("Steps of the engine.", lambda s: s.steps),
    "engine_restarts": (
        "Times that the engine's process had to be started again.",
        lambda s: s.restarts,
    ),
}


class EngineCollector:
    """Reads the engine's own counts whenever somebody scrapes them."""

    def __init__(self, frontend: Frontend, tenants: TenantMetrics):
        self._frontend = frontend
        self._tenants = tenants

    def collect(self) -> Iterable[Metric]:
        stats, labels = self._frontend.stats(), {"model_name": self._frontend.card.name}
        yield from families(GaugeMetricFamily, PREFIX, labels, GAUGES, stats)
        yield from families(CounterMetricFamily, PREFIX, labels, COUNTERS, stats)
        yield self._refused(stats)
        yield from self._tenants.of_engine(self._frontend.card.name, stats)

    def _refused(self, stats: EngineStats) -> Metric:
        help_ = "Requests of which not all is kept that was to be, by the reason."
        counter = CounterMetricFamily(
            PREFIX + "keep_refused", help_, labels=["model_name", "reason"]
        )
        counts = {} if stats.keeps is None else stats.keeps.refused
        for reason in get_args(Reason):
            counter.add_metric([self._frontend.card.name, reason], counts.get(reason, 0))
        return counter


class Metrics:
    """Everything that ``/metrics`` shows. Labels are the served model's name, and a tenant's."""

    def __init__(
        self,
        frontend: Frontend,
        tenants: Callable[[], Iterable[str]],
        compat: Peer | None = None,
    ):
        """``tenants`` says the names of those that may have labels of their own; ``compat`` whose
        names are shown beside our own."""
        self._frontend = frontend
        self.registry = CollectorRegistry()
        self.shown: Collector = self.registry
        if compat is not None:
            self.shown = Compatible(self.registry, PREFIX, frontend, compat)
        self.tenants = TenantMetrics(self.registry, tenants)
        self.registry.register(EngineCollector(frontend, self.tenants))
        self.queue = self._histogram("request_queue_time_seconds", LATENCY)
        self.first_token = self._histogram("time_to_first_token_seconds", TTFT)
        self.between_tokens = self._histogram("inter_token_latency_seconds", ITL)
        self.latency = self._histogram("e2e_request_latency_seconds", LATENCY)
        self.decoding = self._histogram("request_decode_time_seconds", LATENCY)
        self.per_token = self._histogram("request_time_per_output_token_seconds", ITL)
        self.prompt_tokens = self._histogram("request_prompt_tokens", TOKENS)
        self.computed_tokens = self._histogram("request_prefill_kv_computed_tokens", TOKENS)
        self.generation_tokens = self._histogram("request_generation_tokens", TOKENS)
        self.longest_answer = self._histogram("request_max_num_generation_tokens", TOKENS)
        self.finished = Counter(
            PREFIX + "request_success",
            "Answers by the reason for their end.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )

        self.computed = Counter(
            PREFIX + "prompt_tokens_computed",
            "Prompt tokens that were not reused, by the reason: extended is what is new.",
            ["model_name", "reason"],
            registry=self.registry,
        )
        self.explaining = Gauge(
            PREFIX + "explaining_seconds",
            "Processor time spent on finding these reasons.",
            ["model_name"],
            registry=self.registry,
        )

    def explained(self, explanation: Explanation | None, seconds: float) -> None:
        """A prompt is explained; ``seconds`` were spent on that so far, in all."""
        model = self._frontend.card.name
        self.explaining.labels(model).set(seconds)
        for part in explanation.parts if explanation is not None else ():
            self.computed.labels(model, part.reason).inc(part.tokens)

    def request(self, tenant: str) -> RequestTimer:
        return RequestTimer(self, self._frontend.card.name, tenant)

    def _histogram(self, name: str, buckets: Buckets) -> Histogram:
        words = name.replace("_", " ").capitalize()
        return Histogram(
            PREFIX + name, f"{words}.", ["model_name"], buckets=buckets, registry=self.registry
        )


class RequestTimer:
    """Observes one prompt's answers from the moment it is made."""

    def __init__(self, metrics: Metrics, model: str, tenant: str):
        self._metrics = metrics
        self._model = model
        self._tenant = tenant
        self._gap = metrics.between_tokens.labels(model).observe
        """Found once: it is called for each token."""
        self._start = perf_counter()
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._longest = 0

    def take(self, delta: TextDelta) -> None:
        now = perf_counter()
        if delta.waited is not None:
            self._metrics.queue.labels(self._model).observe(delta.waited)
            self._metrics.tenants.waited(self._model, self._tenant, delta.waited)
        if delta.tokens:
            if delta.index in self._last:
                self._gap((now - self._last[delta.index]) / len(delta.tokens))
            else:
                if not self._first:
                    self._metrics.first_token.labels(self._model).observe(now - self._start)
                    self._metrics.tenants.began(self._model, self._tenant, now - self._start)
                self._first[delta.index] = now
            self._last[delta.index] = now
        if delta.finish is not None:
            self._metrics.finished.labels(self._model, delta.finish).inc()
            self._finish(delta.index, delta.usage)

    def _finish(self, index: int, usage: Usage) -> None:
        metrics, model, tokens = self._metrics, self._model, usage.completion_tokens
        metrics.generation_tokens.labels(model).observe(tokens)
        self._longest = max(self._longest, tokens)
        if index == 0:
            metrics.prompt_tokens.labels(model).observe(usage.prompt_tokens)
            computed = usage.prompt_tokens - usage.cached_tokens
            metrics.computed_tokens.labels(model).observe(computed)
        if index in self._first:
            seconds = self._last[index] - self._first[index]
            metrics.decoding.labels(model).observe(seconds)
            if tokens > 1:
                metrics.per_token.labels(model).observe(seconds / (tokens - 1))

    def end(self, unfinished: int, reason: str) -> None:
        """Nothing more will come; ``unfinished`` answers have ended for ``reason``."""
        if unfinished:
            self._metrics.finished.labels(self._model, reason).inc(unfinished)
        if self._longest:
            self._metrics.longest_answer.labels(self._model).observe(self._longest)
        if reason != "refused":
            self._metrics.latency.labels(self._model).observe(perf_counter() - self._start)


def _budget(stats: EngineStats) -> float:
    """Budgets of several tenants may come to more pages than there are. The account without a name
    is nobody's where tenants have names."""
    named = [each for name, each in stats.tenants.items() if name != OPEN]
    budgets = sum(each.keep_budget for each in named or stats.tenants.values())
    return min(budgets, stats.pages_total)


def _share_in_use(stats: EngineStats) -> float:
    in_use = stats.pages_total - stats.pages_free - stats.pages_evictable
    return in_use / stats.pages_total if stats.pages_total else 0.0
