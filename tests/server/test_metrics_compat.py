"""Our numbers under the names of other servers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample
from starlette.testclient import TestClient
from typer.testing import CliRunner

from radixserve.cli import app as command
from radixserve.server.app import create_app
from radixserve.server.metrics_compat import Pace, Peer
from radixserve.server.service import Settings
from tests.server.asking import chat, complete
from tests.server.fake import ANSWER, MODEL, FakeFrontend

READ_OF_VLLM = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "num_preemptions": "counter",
    "prompt_tokens": "counter",
    "prompt_tokens_cached": "counter",
    "generation_tokens": "counter",
    "request_success": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "request_max_num_generation_tokens": "histogram",
    "request_prefill_kv_computed_tokens": "histogram",
}
"""What its dashboards, and routers of its kind, ask for."""
READ_OF_SGLANG = {
    "num_running_reqs": "gauge",
    "num_queue_reqs": "gauge",
    "num_used_tokens": "gauge",
    "token_usage": "gauge",
    "full_token_usage": "gauge",
    "gen_throughput": "gauge",
    "cache_hit_rate": "gauge",
    "kv_used_tokens": "gauge",
    "kv_available_tokens": "gauge",
    "kv_evictable_tokens": "gauge",
    "max_total_num_tokens": "gauge",
    "page_size": "gauge",
    "num_pages": "gauge",
    "context_len": "gauge",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "cached_tokens": "counter",
    "num_requests": "counter",
    "num_aborted_requests": "counter",
    "evicted_tokens": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "prompt_tokens_histogram": "histogram",
    "uncached_prompt_tokens_histogram": "histogram",
    "generation_tokens_histogram": "histogram",
}


@dataclass
class Shown:
    types: dict[str, str]
    samples: list[Sample]

    def value(self, name: str, **labels: str) -> float:
        """Of the one sample with this name and, among others, these labels."""
        [found] = [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return float(found)


def scraped(peer: Peer | None, frontend: FakeFrontend, *, openmetrics: bool = False) -> Shown:
    """What is shown after a few requests: two answers, one that broke, one that was refused."""
    frontend.card = replace(frontend.card, page_size=16)
    with TestClient(
        create_app(frontend, settings=Settings(metrics_compat=peer)), raise_server_exceptions=False
    ) as client:
        chat(client)
        complete(client, "ab", n=2, max_tokens=2)
        frontend.fail_after = 1
        chat(client)
        frontend.fail_after = None
        chat(client, n=5000)
        accept = {"accept": "application/openmetrics-text; version=1.0.0"} if openmetrics else {}
        text = client.get("/metrics", headers=accept).text
    families = list((parse_open if openmetrics else parse_text)(text))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    return Shown(
        {family.name: family.type for family in families},
        [sample for family in families for sample in family.samples],
    )


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])
@pytest.mark.parametrize(
    ("peer", "names"), [("vllm", READ_OF_VLLM), ("sglang", READ_OF_SGLANG)], ids=["vllm", "sglang"]
)
def test_what_others_read_is_there_with_its_type_and_our_own_is_there_too(
    peer: Peer, names: dict[str, str], openmetrics: bool
):
    shown = scraped(peer, FakeFrontend(), openmetrics=openmetrics)
    found = {name: shown.types.get(f"{peer}:{name}") for name in names}
    assert found == names
    own = scraped(None, FakeFrontend()).types
    assert own
    assert own.items() <= scraped(peer, FakeFrontend()).types.items()
    assert not any(name.startswith(f"{peer}:") for name in own)


def test_numbers_under_vllms_names_mean_what_they_mean_there():
    frontend = FakeFrontend()
    frontend.waiting = 3
    shown = scraped("vllm", frontend)
    labels = {"model_name": MODEL, "engine": "0"}
    for name, value in {
        "num_requests_running": 1,
        "num_requests_waiting": 3,
        "kv_cache_usage_perc": 0.25,
        "prefix_cache_queries_total": 1000,
        "prefix_cache_hits_total": 800,
        "generation_tokens_total": 90,
        "time_to_first_token_seconds_count": 3,
        "request_generation_tokens_sum": len(ANSWER) + 2 * 2,
        "request_max_num_generation_tokens_sum": len(ANSWER) + 2,
        "request_max_num_generation_tokens_count": 2,
        "request_decode_time_seconds_count": 3,
        "request_time_per_output_token_seconds_count": 3,
    }.items():
        assert shown.value(f"vllm:{name}", **labels) == value, name
    computed = shown.value("vllm:request_prefill_kv_computed_tokens_sum")
    assert computed == shown.value("vllm:request_prompt_tokens_sum")
    ends = {
        sample.labels["finished_reason"]
        for sample in shown.samples
        if sample.name == "vllm:request_success_total"
    }
    assert ends == {"stop", "length", "error"}
    assert shown.value("vllm:request_success_total", finished_reason="length") == 2


def test_routers_for_vllm_learn_how_many_tokens_the_pages_hold():
    shown = scraped("vllm", FakeFrontend())
    pages = {"block_size": "16", "num_gpu_blocks": "100", "engine": "0"}
    assert shown.value("vllm:cache_config_info", **pages) == 1


def test_numbers_under_sglangs_names_mean_what_they_mean_there():
    shown = scraped("sglang", FakeFrontend())
    labels = {"model_name": MODEL, "engine_type": "unified", "tp_rank": "0", "pp_rank": "0"}
    for name, value in {
        "num_running_reqs": 1,
        "num_queue_reqs": 0,
        "token_usage": 0.25,
        "num_used_tokens": 25 * 16,
        "kv_evictable_tokens": 25 * 16,
        "kv_available_tokens": 50 * 16,
        "max_total_num_tokens": 100 * 16,
        "page_size": 16,
        "num_pages": 100,
        "context_len": 200,
        "cache_hit_rate": 0.8,
        "cached_tokens_total": 800,
        "num_requests_total": 3,
        "num_aborted_requests_total": 0,
        "evicted_tokens_total": 5 * 16,
        "generation_tokens_histogram_sum": len(ANSWER) + 2 * 2,
    }.items():
        assert shown.value(f"sglang:{name}", **labels) == value, name


def test_a_pace_is_taken_between_looks_that_are_not_too_close_and_begins_anew_with_its_total():
    now = 10.0
    pace = Pace(lambda: now)
    assert pace.of(100) == 0
    now = 14.0
    assert pace.of(300) == 50
    now = 14.5
    assert pace.of(400) == 50
    now = 16.0
    assert pace.of(500) == 100
    assert pace.of(3) == 0


def test_names_that_nobody_reads_are_refused_at_start():
    told = CliRunner().invoke(command, ["serve", "--metrics-compat", "statsd"])
    assert told.exit_code == 2
    assert "--metrics-compat" in told.output
