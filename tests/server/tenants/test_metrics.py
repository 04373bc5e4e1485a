"""What a scraper sees of tenants: their names, as many as fit, and never a key."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from radixserve.engine.messages import TenantStats
from radixserve.server.app import create_app
from radixserve.server.metrics import GAUGES
from radixserve.server.tenants import metrics
from radixserve.tenants.keys import hash_of
from tests.server.asking import complete
from tests.server.fake import ANSWER, WAITED, FakeFrontend
from tests.server.tenants.people import KEYS, bearer, client_of, limited, registry


def shown(client: TestClient, **headers: str) -> dict[tuple[str, ...], float]:
    text = client.get("/metrics", headers=headers).text
    return {
        (
            sample.name.removeprefix("radixserve:tenant_"),
            *(sample.labels[name] for name in ("tenant", "limit") if name in sample.labels),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("radixserve:tenant_")
    }


def ask(client: TestClient, key: str, status: int = 200) -> None:
    answer = client.post("/v1/completions", json={"prompt": "abcd"}, headers={"x-api-key": key})
    assert answer.status_code == status


def test_each_tenants_requests_tokens_and_refusals_are_counted(frontend: FakeFrontend):
    rights = 'endpoints = ["metrics", "completions"]'
    tenants = registry(limited("requests_per_minute = 2", rights))
    with client_of(frontend, tenants) as client:
        for status in (200, 200, 429):
            ask(client, KEYS["alice"], status)
        ask(client, KEYS["bob"])
        counts = shown(client, **bearer("alice"))
    assert counts["requests_total", "alice"] == 3
    assert counts["prompt_tokens_total", "alice"] == 8
    assert counts["prompt_tokens_cached_total", "alice"] == 3
    assert counts["generation_tokens_total", "alice"] == 2 * len(ANSWER)
    assert counts["refused_total", "alice", "requests"] == 1
    assert counts["time_to_first_token_seconds_count", "alice"] == 2
    assert counts["queue_time_seconds_count", "alice"] == 2
    assert counts["queue_time_seconds_sum", "alice"] == 2 * WAITED
    assert counts["requests_total", "bob"] == 1
    assert counts["queue_time_seconds_count", "bob"] == 1
    assert counts["prompt_tokens_cached_total", "bob"] == 0
    assert ("refused_total", "bob", "requests") not in counts


def test_beyond_so_many_tenants_the_others_share_a_label(
    frontend: FakeFrontend, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metrics, "MOST_NAMES", 3)
    text = "".join(
        f'[tenants.t{number}]\nkeys = ["{hash_of(str(number))}"]\n'
        f'endpoints = ["completions", "metrics"]\n'
        for number in range(6)
    )
    tenants = registry(text)
    with client_of(frontend, tenants) as client:
        for number in (5, 4, 0, 1, 2):
            ask(client, str(number))
        counts = shown(client, **{"x-api-key": "0"})
        for label, count in (("t0", 1), ("t1", 1), ("t2", 1), ("other", 2)):
            assert counts["requests_total", label] == count
        # Names that come later find no room, and those that go keep theirs.
        tenants.roster = registry(text.replace("tenants.t", "tenants.u")).roster
        ask(client, "0")
        counts = shown(client, **{"x-api-key": "0"})
    assert counts["requests_total", "other"] == 3
    assert {labels[1] for labels in counts} == {"t0", "t1", "t2", "other"}


def test_requests_without_a_key_and_those_that_generate_nothing_make_no_series(
    frontend: FakeFrontend,
):
    with client_of(frontend) as client:
        for name in ("nobody", "x" * 200, "{}", "\x01"):
            ask(client, name, 401)
        client.get("/v1/models", headers=bearer("alice"))
        assert shown(client, **bearer("boss")) == {}


def test_what_the_engine_knows_of_tenants_is_shown_by_their_names(
    frontend: FakeFrontend, monkeypatch: pytest.MonkeyPatch
):
    counts = {
        "alice": TenantStats(
            pages_cached=5,
            pages_held=2,
            evictions_suffered=1,
            evictions_caused=6,
            lag=7.5,
            waiting=3,
            pages_kept=3,
            keep_budget=9,
        ),
        "": TenantStats(keep_budget=50),
        "gone": TenantStats(pages_cached=4),
        "gone too": TenantStats(pages_cached=3),
    }
    stats = replace(frontend.stats(), tenants=counts)
    monkeypatch.setattr(frontend, "stats", lambda: stats)
    with client_of(frontend) as client:
        told = shown(client, **bearer("boss"))
    assert told["kv_pages_cached", "alice"] == 5
    assert told["kv_pages_held", "alice"] == 2
    assert told["evicted_pages", "alice"] == 1
    assert told["evictions_caused", "alice"] == 6
    assert told["service_lag", "alice"] == 7.5
    assert told["requests_waiting", "alice"] == 3
    assert told["kv_pages_kept", "alice"] == 3
    assert told["kv_pages_keep_budget", "alice"] == 9
    assert told["kv_pages_keep_budget", "other"] == 0
    assert told["kv_pages_cached", "other"] == 7
    assert {labels[1] for labels in told} == {"alice", "other"}
    with TestClient(create_app(frontend)) as client:
        assert shown(client) == {}


@pytest.mark.parametrize(("budgets", "told"), [((30, 40), 70), ((70, 60), 100)])
def test_all_tenants_together_keep_no_more_pages_than_there_are(
    budgets: tuple[int, int], told: int, frontend: FakeFrontend
):
    tenants = {
        name: TenantStats(keep_budget=each) for name, each in zip("ab", budgets, strict=True)
    }
    stats = replace(frontend.stats(), tenants=tenants | {"": TenantStats(keep_budget=50)})
    _, budget = GAUGES["kv_pages_keep_budget"]
    assert budget(stats) == told


def test_of_the_cache_a_tenant_is_told_its_own_share_alone(frontend: FakeFrontend):
    with client_of(frontend) as client:
        for _ in range(2):
            ask(client, KEYS["alice"])
        told = {
            name: client.get("/v1/cache/stats", headers=bearer(name)).json()
            for name in ("alice", "bob", "boss")
        }
    assert told["alice"]["tokens"] == {
        "prompt": 8,
        "cached": 3,
        "computed": 5,
        "generated": 2 * len(ANSWER),
    }
    assert told["alice"]["reuse"] == 3 / 8
    assert (told["bob"]["tokens"]["prompt"], told["bob"]["reuse"]) == (0, None)
    assert told["boss"]["pages"]["total"] == 100
    for name in ("alice", "bob"):
        assert not told[name].keys() & {"pages", "nodes"}
        assert told[name]["requests"] == {"running": 0}


def test_an_open_server_has_no_metrics_of_tenants(frontend: FakeFrontend):
    with TestClient(create_app(frontend)) as client:
        complete(client)
        assert shown(client) == {}
