"""Models, version and metrics."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

import radixserve
from radixserve.server.app import create_app
from tests.server.asking import chat, complete, error_of
from tests.server.fake import ANSWER, MODEL, WAITED, FakeFrontend


def test_the_model_is_listed_and_found_by_its_name(client: TestClient):
    body = client.get("/v1/models").json()
    assert body["object"] == "list"
    [model] = body["data"]
    assert model["id"] == MODEL
    assert model["object"] == "model"
    assert model["created"] == 1_700_000_000
    assert model["max_model_len"] == 200
    assert client.get(f"/v1/models/{MODEL}").json() == model
    assert error_of(client.get("/v1/models/other"), 404)["code"] == "model_not_found"


def test_the_version_is_told(client: TestClient):
    assert client.get("/version").json() == {"version": radixserve.__version__}


def test_the_cache_is_reset_and_what_that_did_is_told(client: TestClient):
    assert cached_tokens(client) == 0
    assert cached_tokens(client) > 0
    answer = client.post("/reset_prefix_cache")
    assert answer.status_code == 200
    assert answer.json() == {"success": True, "dropped_pages": 12, "held_pages": 3}
    assert cached_tokens(client) == 0


def cached_tokens(client: TestClient) -> int:
    usage = chat(client).json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def values(client: TestClient) -> dict[str, float]:
    """Each sample's value by its name and its labels beside the model's name."""
    text = client.get("/metrics").text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {**sample.labels}
            assert labels.pop("model_name") == MODEL
            found[" ".join([sample.name, *labels.values()])] = sample.value
    return found


def test_metrics_tell_the_engines_counts_under_their_usual_names(client: TestClient):
    shown = values(client)
    for name, value in {
        "num_requests_running": 1,
        "num_requests_waiting": 0,
        "pending_tokens": 24,
        "kv_cache_usage_perc": 0.25,
        "prefix_cache_queries_total": 1000,
        "prefix_cache_hits_total": 800,
        "prompt_tokens_total": 1000,
        "prompt_tokens_cached_total": 800,
        "generation_tokens_total": 90,
        "num_preemptions_total": 2,
        "computed_tokens_total": 300,
        "radix_nodes": 11,
    }.items():
        assert shown[f"radixserve:{name}"] == value, name


@pytest.mark.parametrize(
    "accept",
    [
        "text/plain;version=0.0.4",
        "application/openmetrics-text;version=1.0.0",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6",
    ],
)
def test_names_are_the_same_in_every_format(client: TestClient, accept: str):
    chat(client)
    answer = client.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith(accept.partition(";")[0])
    for sample in ("prefix_cache_hits_total", "time_to_first_token_seconds_count"):
        assert f'\nradixserve:{sample}{{model_name="{MODEL}"}} ' in answer.text


def test_metrics_count_what_requests_brought(client: TestClient, frontend: FakeFrontend):
    chat(client)
    complete(client, ["a", "b"], n=2, max_tokens=2)
    chat(client, n=0)
    frontend.fail_after = 1
    chat(client)
    shown = values(client)
    assert shown["radixserve:time_to_first_token_seconds_count"] == 4
    assert shown["radixserve:request_queue_time_seconds_count"] == 4
    assert shown["radixserve:request_queue_time_seconds_sum"] == 4 * WAITED
    assert shown["radixserve:e2e_request_latency_seconds_count"] == 4
    assert shown["radixserve:inter_token_latency_seconds_count"] == len(ANSWER) - 1 + 4
    assert shown["radixserve:request_success_total stop"] == 1
    assert shown["radixserve:request_success_total length"] == 4
    assert shown["radixserve:request_success_total error"] == 1
    assert shown["radixserve:request_generation_tokens_sum"] == len(ANSWER) + 8
    assert shown["radixserve:request_prompt_tokens_count"] == 3


def test_two_apps_do_not_share_their_metrics(client: TestClient):
    chat(client)
    with TestClient(create_app(FakeFrontend())) as other:
        assert "radixserve:time_to_first_token_seconds_count" not in values(other)


def test_routers_are_told_what_runs_here_and_how_busy_it_is(
    client: TestClient, frontend: FakeFrontend
):
    frontend.waiting = 3
    info = client.get("/server_info").json()
    assert info == client.get("/get_server_info").json()
    assert info["model"] == MODEL
    assert info["max_model_len"] == 200
    assert (info["pages_total"], info["pages_free"], info["waiting"]) == (100, 50, 3)
    assert client.get("/load").json() == {
        "server_load": 4,
        "running": 1,
        "waiting": 3,
        "pending_tokens": 24,
    }
    assert client.get("/get_model_info").json()["model_path"] == MODEL
    assert client.get("/ready").status_code == 200
    frontend.alive = False
    assert client.get("/ready").status_code == 503


def test_an_application_is_made_before_its_engine_has_started():
    frontend = FakeFrontend()
    card, tokenizer = frontend.card, frontend.tokenizer
    del frontend.card, frontend.tokenizer
    app = create_app(frontend)
    frontend.card, frontend.tokenizer = card, tokenizer
    with TestClient(app) as client:
        assert chat(client).status_code == 200
