"""The numbers of ``/metrics`` once more, under the names that dashboards, routers and autoscalers
made for vLLM 0.33 or SGLang 0.5 read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.samples import Sample

from radixserve.engine.frontend import Frontend, ModelCard
from radixserve.engine.messages import EngineStats

Peer = Literal["vllm", "sglang"]
Number = Callable[[EngineStats, ModelCard], float]

SAME = {
    name: name
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_preemptions",
        "prompt_tokens",
        "prompt_tokens_cached",
        "generation_tokens",
        "request_queue_time_seconds",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "request_time_per_output_token_seconds",
        "request_decode_time_seconds",
        "request_prompt_tokens",
        "request_prefill_kv_computed_tokens",
        "request_generation_tokens",
        "request_max_num_generation_tokens",
        "request_success",
    )
}
RENAMED = {
    "num_running_reqs": "num_requests_running",
    "num_queue_reqs": "num_requests_waiting",
    "token_usage": "kv_cache_usage_perc",
    "full_token_usage": "kv_cache_usage_perc",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "cached_tokens": "prompt_tokens_cached",
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "inter_token_latency_seconds": "inter_token_latency_seconds",
    "request_time_per_output_token_seconds": "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds": "e2e_request_latency_seconds",
    "prompt_tokens_histogram": "request_prompt_tokens",
    "uncached_prompt_tokens_histogram": "request_prefill_kv_computed_tokens",
    "generation_tokens_histogram": "request_generation_tokens",
}


def _used(stats: EngineStats, card: ModelCard) -> int:
    return (stats.pages_total - stats.pages_free - stats.pages_evictable) * card.page_size


GAUGES: dict[str, tuple[str, Number]] = {
    "num_used_tokens": ("Tokens in pages of running requests.", _used),
    "kv_used_tokens": ("Tokens in pages of running requests.", _used),
    "kv_evictable_tokens": (
        "Tokens in pages that are cached and not in use.",
        lambda s, card: s.pages_evictable * card.page_size,
    ),
    "kv_available_tokens": (
        "Tokens in pages that hold nothing.",
        lambda s, card: s.pages_free * card.page_size,
    ),
    "max_total_num_tokens": (
        "Tokens that all pages hold.",
        lambda s, card: s.pages_total * card.page_size,
    ),
    "page_size": ("Tokens a page.", lambda s, card: card.page_size),
    "num_pages": ("Pages.", lambda s, card: s.pages_total),
    "context_len": ("Tokens of the longest request.", lambda s, card: card.max_model_len),
    "cache_hit_rate": (
        "Share of the prompt tokens since the start that were reused, 0 to 1.",
        lambda s, card: s.cached_tokens / s.prompt_tokens if s.prompt_tokens else 0.0,
    ),
}
COUNTERS: dict[str, tuple[str, Number]] = {
    "num_requests": ("Requests that have ended.", lambda s, card: sum(s.finished.values())),
    "num_aborted_requests": (
        "Requests that were aborted.",
        lambda s, card: s.finished.get("abort", 0),
    ),
    "evicted_tokens": (
        "Tokens evicted from the cache.",
        lambda s, card: s.evicted_pages * card.page_size,
    ),
}


@dataclass(frozen=True, slots=True)
class Names:
    """How one peer calls our numbers. All names lack their prefix, those of counters ``_total``."""

    prefix: str
    labels: dict[str, str]
    """Beside those of ours."""
    table: dict[str, str]
    """Its name to the name of ours that has the same type and meaning."""
    gauges: dict[str, tuple[str, Number]]
    """What we do not show ourselves."""
    counters: dict[str, tuple[str, Number]]


NAMES: dict[Peer, Names] = {
    "vllm": Names("vllm:", {"engine": "0"}, SAME, {}, {}),
    "sglang": Names(
        "sglang:",
        {"engine_type": "unified", "tp_rank": "0", "pp_rank": "0"},
        RENAMED,
        GAUGES,
        COUNTERS,
    ),
}


def families(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    prefix: str,
    labels: dict[str, str],
    table: Mapping[str, tuple[str, Callable[..., float]]],
    *facts: object,
) -> Iterator[Metric]:
    """The numbers of ``table`` as metrics, each by its name with its help and what it is of
    ``facts``."""
    for name, (help_, number) in table.items():
        family = kind(prefix + name, help_, labels=list(labels))
        family.add_metric(list(labels.values()), number(*facts))
        yield family


class Compatible:
    """Collects what ``own`` has, and after it the same under the names of ``peer``.

    Args:
        own: metrics whose names begin with ``prefix``.
    """

    def __init__(self, own: CollectorRegistry, prefix: str, frontend: Frontend, peer: Peer):
        self._own, self._prefix, self._frontend = own, prefix, frontend
        self._names, self._peer = NAMES[peer], peer
        self._pace = Pace()

    def collect(self) -> Iterable[Metric]:
        ours = list(self._own.collect())
        yield from ours
        found = {metric.name.removeprefix(self._prefix): metric for metric in ours}
        for theirs, name in self._names.table.items():
            if name in found:
                yield self._renamed(found[name], theirs)
        stats, card = self._frontend.stats(), self._frontend.card
        labels = {"model_name": card.name, **self._names.labels}
        prefix, gauges = self._names.prefix, dict(self._names.gauges)
        if self._peer == "sglang":
            help_ = "Tokens generated a second, since the scrape before."
            gauges["gen_throughput"] = (help_, lambda s, card: self._pace.of(s.generated_tokens))
        yield from families(GaugeMetricFamily, prefix, labels, gauges, stats, card)
        yield from families(CounterMetricFamily, prefix, labels, self._names.counters, stats, card)
        if self._peer == "vllm":
            yield self._cache_config(stats, labels)

    def _renamed(self, metric: Metric, name: str) -> Metric:
        """``metric`` as theirs; without requests that were refused, which they do not count."""
        shown = Metric(self._names.prefix + name, metric.documentation, metric.type)
        shown.samples = [
            Sample(
                shown.name + sample.name.removeprefix(metric.name),
                {**sample.labels, **self._names.labels},
                *sample[2:],
            )
            for sample in metric.samples
            if sample.labels.get("finished_reason") != "refused"
        ]
        return shown

    def _cache_config(self, stats: EngineStats, labels: dict[str, str]) -> Metric:
        """What routers make tokens of pages with."""
        card = self._frontend.card
        info = InfoMetricFamily(
            "vllm:cache_config", "Settings of the KV cache.", labels=list(labels)
        )
        settings = {
            "block_size": str(card.page_size),
            "num_gpu_blocks": str(stats.pages_total),
            "cache_dtype": card.kv_cache_dtype,
            "enable_prefix_caching": str(card.prefix_cache),
        }
        info.add_metric(list(labels.values()), settings)
        return info


class Pace:
    """How fast a total grows, in units a second, between looks at it."""

    SHORTEST = 1.0
    """Seconds between two looks that count: one that follows sooner is told what the last was."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._total = 0
        self._rate = 0.0

    def of(self, total: int) -> float:
        now = self._clock()
        if self._since is None or total < self._total:  # the engine has begun anew
            self._since, self._total, self._rate = now, total, 0.0
        elif now - self._since >= self.SHORTEST:
            self._rate = (total - self._total) / (now - self._since)
            self._since, self._total = now, total
        return self._rate
