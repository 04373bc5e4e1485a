"""Limits that clients understand: refused early, told when to come back, charged what was used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import openai
import pytest
from starlette.testclient import TestClient

from radixserve.errors import OverloadedError
from radixserve.server.app import create_app
from radixserve.server.tenants.visit import ASSUMED_ANSWER
from tests.server.asking import chat, complete, error_of, events
from tests.server.fake import ANSWER, FakeFrontend
from tests.server.handed import hand
from tests.server.sockets import serving
from tests.server.tenants.people import KEYS, Hands, bearer, client_of, limited, registry

PROMPT = "x" * 40
"""As many tokens."""


def served(frontend: FakeFrontend, limits: str, more: str = "") -> tuple[TestClient, Hands]:
    clock = Hands()
    return client_of(frontend, registry(limited(limits, more), clock=clock)), clock


def ask(client: TestClient, name: str = "alice", **fields):
    body = {"prompt": PROMPT, "max_tokens": 10, **fields}
    return client.post("/v1/completions", json=body, headers=bearer(name))


def left(client: TestClient) -> int:
    """Tokens that alice has left, as an answer that costs none tells it."""
    answer = client.post("/v1/completions", json={"prompt": 5}, headers=bearer("alice"))
    assert answer.status_code == 400
    return int(answer.headers["x-ratelimit-remaining-tokens"])


def test_requests_beyond_the_minutes_are_refused_until_the_bucket_has_filled(
    frontend: FakeFrontend,
):
    client, clock = served(frontend, "requests_per_minute = 3")
    assert [ask(client).status_code for _ in range(4)] == [200, 200, 200, 429]
    refusal = ask(client)
    error = error_of(refusal, 429)
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "3 requests a minute" in error["message"]
    assert refusal.headers["retry-after"] == "20"
    assert refusal.headers["retry-after-ms"] == "20000"
    assert ask(client, "bob").status_code == 200, "others are not concerned"
    assert len(frontend.requests) == 4
    clock.now += 20
    assert [ask(client).status_code for _ in range(2)] == [200, 429]


def test_headers_tell_the_limits_under_both_names(frontend: FakeFrontend):
    client, _ = served(frontend, "requests_per_minute = 60, tokens_per_minute = 6000")
    headers = ask(client).headers
    assert headers["x-ratelimit-limit-requests"] == "60"
    assert headers["x-ratelimit-remaining-requests"] == "59"
    assert headers["x-ratelimit-reset-requests"] == "1s"
    assert headers["x-ratelimit-limit-tokens"] == "6000"
    assert headers["x-ratelimit-remaining-tokens"] == str(6000 - 40 - 10)
    assert headers["x-ratelimit-reset-tokens"] == "500ms"
    for kind in ("requests", "tokens"):
        for name in ("limit", "remaining"):
            ours = headers[f"x-ratelimit-{name}-{kind}"]
            assert headers[f"anthropic-ratelimit-{kind}-{name}"] == ours
        reset = datetime.fromisoformat(headers[f"anthropic-ratelimit-{kind}-reset"])
        assert reset.tzinfo is not None
    free = ask(client, "bob").headers
    assert not [name for name in free if "ratelimit" in name]


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_set_aside_by_the_longest_answer_and_charged_by_the_one_that_came(
    frontend: FakeFrontend, stream: bool
):
    client, _ = served(frontend, "tokens_per_minute = 1000")
    answer = ask(client, max_tokens=100, stream=stream)
    assert answer.headers["x-ratelimit-remaining-tokens"] == str(1000 - 140)
    assert left(client) == 1000 - 40 - len(ANSWER)


def test_cached_tokens_cost_what_the_file_says(frontend: FakeFrontend):
    client, _ = served(frontend, "tokens_per_minute = 1000, cached_token_weight = 0.25")
    ask(client)
    before = left(client)
    usage = ask(client).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 39
    assert before - left(client) == 1 + round(39 * 0.25) + len(ANSWER)


def test_several_prompts_and_answers_are_all_counted(frontend: FakeFrontend):
    client, _ = served(frontend, "tokens_per_minute = 10000")
    answer = ask(client, prompt=["ab", "abc"], n=3, max_tokens=4)
    assert answer.headers["x-ratelimit-remaining-tokens"] == str(10000 - 5 - 2 * 3 * 4)
    assert left(client) == 10000 - 5 - 2 * 3 * 4


def test_an_answer_of_unsaid_length_is_assumed_to_be_short(frontend: FakeFrontend):
    frontend.card = frontend.card.__class__(
        name="m", max_model_len=10_000, vocab_size=256, created=0
    )
    client, _ = served(frontend, "tokens_per_minute = 10000")
    answer = chat(client, headers=bearer("alice"))
    prompt = answer.json()["usage"]["prompt_tokens"]
    remaining = int(answer.headers["x-ratelimit-remaining-tokens"])
    # Unstreamed, the headers leave before what was not used is given back.
    assert remaining == 10000 - prompt - ASSUMED_ANSWER


def test_when_the_minutes_tokens_are_gone_the_wait_is_told(frontend: FakeFrontend):
    client, clock = served(frontend, "tokens_per_minute = 100")
    assert ask(client).status_code == 200
    refusal = ask(client, max_tokens=60)
    message = error_of(refusal, 429)["message"]
    assert "100 tokens a minute" in message
    assert "may need 100" in message
    wait = int(refusal.headers["retry-after-ms"]) / 1000
    assert wait == pytest.approx((100 - (100 - 40 - len(ANSWER))) * 0.6, abs=0.01)
    assert int(refusal.headers["retry-after"]) >= wait
    assert "x-ratelimit-remaining-tokens" in refusal.headers
    clock.now += wait
    assert ask(client, max_tokens=60).status_code == 200


def test_a_request_larger_than_the_bucket_is_served_once_and_paid_for_afterwards(
    frontend: FakeFrontend,
):
    client, clock = served(frontend, "tokens_per_minute = 20")
    assert ask(client).status_code == 200
    assert left(client) == 0
    clock.now += 60
    refusal = ask(client)
    assert refusal.status_code == 429
    clock.now += int(refusal.headers["retry-after"])
    assert ask(client).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_over_the_limit_is_an_answer_with_a_status(frontend: FakeFrontend, stream: bool):
    client, _ = served(frontend, "tokens_per_minute = 60")
    ask(client)
    refusal = ask(client, stream=stream)
    assert error_of(refusal, 429)["code"] == "rate_limit_exceeded"
    assert len(frontend.requests) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frontend: setattr(frontend, "refuse", OverloadedError("Full.")),
        lambda frontend: setattr(frontend, "die_after", 0),
    ],
    ids=["refused by the engine", "failed at once"],
)
def test_what_the_server_did_not_do_costs_no_tokens(
    frontend: FakeFrontend, spoil: Callable[[FakeFrontend], None]
):
    client, _ = served(frontend, "tokens_per_minute = 1000, concurrent_requests = 1")
    spoil(frontend)
    for _ in range(3):
        assert ask(client).status_code in (500, 503)
    assert left(client) == 1000


def test_who_hangs_up_pays_for_the_prompt_and_leaves_room_for_others(frontend: FakeFrontend):
    tenants = registry(limited("tokens_per_minute = 1000, concurrent_requests = 1"), clock=Hands())
    app = create_app(frontend, tenants=tenants)
    assert tenants.roster is not None
    alice = tenants.roster.tenants["alice"]
    meter = tenants.meter(alice)

    async def scenario() -> None:
        frontend.hold()
        gone = asyncio.Event()
        headers = [(b"x-api-key", KEYS["alice"].encode())]
        fields = {"prompt": PROMPT, "max_tokens": 10}
        visit = asyncio.create_task(
            hand(app, "/v1/completions", fields, headers=headers, gone=gone)
        )
        while not frontend.requests:
            await asyncio.sleep(0)
        assert (meter.running, meter.remaining()) == (1, {"tokens": 950})
        gone.set()
        await visit
        assert (meter.running, meter.remaining()) == (0, {"tokens": 960})

    asyncio.run(scenario())


def test_no_more_requests_run_at_once_than_a_tenant_may(frontend: FakeFrontend):
    tenants = registry(limited("concurrent_requests = 2, requests_per_minute = 100"), clock=Hands())
    frontend.hold()
    with serving(create_app(frontend, tenants=tenants)) as server:
        clients = {
            name: openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[name], max_retries=0)
            for name in ("alice", "bob")
        }
        streams = [
            clients[name].completions.create(model="fake/model", prompt="a", stream=True)
            for name in ("alice", "alice", "bob")
        ]
        with pytest.raises(openai.RateLimitError) as refusal:
            clients["alice"].completions.create(model="fake/model", prompt="a")
        assert refusal.value.code == "rate_limit_exceeded"
        assert refusal.value.response.headers["retry-after"] == "1"
        assert refusal.value.response.headers["x-ratelimit-remaining-requests"] == "98"
        for _ in streams:
            frontend.asked.acquire()
        frontend.release()
        for stream in streams:
            assert "".join(chunk.choices[0].text for chunk in stream) == ANSWER
        done = clients["alice"].completions.create(model="fake/model", prompt="a")
        assert done.choices[0].text == ANSWER
        for each in clients.values():
            each.close()


def test_the_official_client_comes_back_when_it_is_told_to(frontend: FakeFrontend):
    def clock() -> float:
        return 60.0 if meter is not None and meter.totals.refused else 0.0

    meter = None
    tenants = registry(limited("requests_per_minute = 60000"), clock=clock)
    meter = tenants.meter(tenants.tenants["alice"])
    assert meter._requests is not None
    meter._requests.level = 0.0
    with (
        serving(create_app(frontend, tenants=tenants)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS["alice"]) as client,
    ):
        done = client.completions.create(model="fake/model", prompt="a")
    assert done.choices[0].text == ANSWER
    assert meter.totals.refused == {"requests": 1}


def test_a_bad_request_is_a_request_but_costs_no_tokens(frontend: FakeFrontend):
    client, _ = served(frontend, "requests_per_minute = 2, tokens_per_minute = 1000")
    assert ask(client, n=0).status_code == 400
    answer = ask(client, temperature="hot")
    assert answer.status_code == 400
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert answer.headers["x-ratelimit-remaining-tokens"] == "1000"
    assert ask(client).status_code == 429


@pytest.mark.parametrize(
    ("ceiling", "fields", "headers", "given"),
    [
        ("", {}, {}, 0),
        ("", {"priority": -3}, {}, 0),
        ("", {"priority": 3}, {}, 3),
        ("", {}, {"x-radixserve-priority": "high"}, 0),
        ("", {}, {"x-radixserve-priority": "low"}, 1),
        ('priority = "high"', {}, {"x-radixserve-priority": "high"}, -1),
        ('priority = "high"', {"priority": -2}, {}, -1),
        ('priority = "low"', {}, {}, 1),
        ("priority = -7", {"priority": -7}, {}, -7),
    ],
)
def test_a_better_priority_than_ones_best_becomes_that_and_is_told(
    frontend: FakeFrontend, ceiling: str, fields: dict, headers: dict, given: int
):
    client, _ = served(frontend, "", ceiling)
    answer = client.post(
        "/v1/completions", json={"prompt": "a", **fields}, headers={**bearer("alice"), **headers}
    )
    assert answer.status_code == 200
    [request] = frontend.requests
    assert request.priority == given
    words = {"high": -1, "low": 1}
    asked = fields.get("priority", words.get(headers.get("x-radixserve-priority", ""), 0))
    shown = answer.headers.get("x-radixserve-priority")
    assert shown == (None if asked == given else str(given))


def test_an_open_server_has_no_limits_and_says_nothing_of_them(frontend: FakeFrontend):
    with TestClient(create_app(frontend)) as client:
        answers = [complete(client) for _ in range(50)]
        stream = complete(client, stream=True)
    assert {answer.status_code for answer in answers} == {200}
    assert events(stream)
    for answer in [*answers, stream]:
        assert not [name for name in answer.headers if "ratelimit" in name]
