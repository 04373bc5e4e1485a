"""What a client may say about time and about the cache."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from radixserve.server.service import Settings
from tests.engine.saying import TEXT
from tests.engine.timing import Timeouts, generated, under_way
from tests.server.asking import chat, complete, events, refused
from tests.server.fake import FakeFrontend
from tests.server.stack import said, stack, usage


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (None, "on"),
        ({}, "on"),
        ({"mode": None}, "on"),
        ({"mode": "on"}, "on"),
        ({"mode": "read-only"}, "read-only"),
        ({"mode": "no-store"}, "read-only"),
        ({"mode": "off"}, "off"),
    ],
)
def test_the_cache_is_used_as_the_client_says(
    client: TestClient, frontend: FakeFrontend, said: object, meant: str
):
    assert chat(client, cache=said).status_code == 200
    assert complete(client, cache=said).status_code == 200
    assert [request.cache for request in frontend.requests] == [meant, meant]


@pytest.mark.parametrize("said", [{"mode": "sometimes"}, {"mode": 1}, "off", {"ttl": "5m"}])
def test_what_nobody_can_do_with_the_cache_is_refused(client: TestClient, said: object):
    param, code = refused(chat(client, cache=said))
    assert param is not None
    assert param.startswith("cache")
    assert code in ("invalid_type", "invalid_value")


def test_a_timeout_reaches_the_engine(client: TestClient, frontend: FakeFrontend):
    assert chat(client, timeout=2.5).status_code == 200
    assert complete(client).status_code == 200
    assert [request.timeout for request in frontend.requests] == [2.5, None]


@pytest.mark.parametrize("seconds", [0, -1, 1e9])
def test_a_timeout_that_is_no_time_is_refused(client: TestClient, seconds: float):
    assert refused(chat(client, timeout=seconds)) == ("timeout", "invalid_value")


def test_a_timeout_of_another_type_is_refused(client: TestClient):
    assert refused(chat(client, timeout="soon")) == ("timeout", "invalid_type")


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_that_have_not_begun_in_time_end_empty_beside_those_that_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
):
    timeouts = Timeouts(monkeypatch)

    async def scenario() -> None:
        at_once = Settings(grace=0.0)  # so that a stream has begun when its time is over
        async with stack(tmp_path, server=at_once, max_num_seqs=1) as server:
            asked = {"prompt": ["one", "two"], "max_tokens": 90, "timeout": 1000, "stream": stream}
            if stream:
                asked["stream_options"] = {"include_usage": True}
            server.model.hold()
            answer = asyncio.create_task(server.ask(**asked))
            await server.steps(5)
            await generated(server.engine, 5)
            timeouts.end()
            response = await answer
            server.model.free()
            assert (said(response, 0), said(response, 1)) == (TEXT[:5], "")
            assert usage(response)["completion_tokens"] == 5
            prompts = [server.engine.tokenizer.encode(each) for each in asked["prompt"]]
            assert usage(response)["prompt_tokens"] == sum(len(each) // 4 for each in prompts)
            ends = events(response) if stream else [response.json()]
            reasons = [
                (choice["index"], choice["finish_reason"], choice["stop_reason"])
                for event in ends
                for choice in event["choices"]
                if choice["finish_reason"]
            ]
            assert sorted(reasons) == [(0, "length", "deadline"), (1, "length", "deadline")]
            await server.settle()
            server.model.hold()
            asking = asyncio.create_task(server.ask(**asked))
            await under_way(server.engine, 2)
            timeouts.end()
            late = await asking
            assert late.status_code == (200 if stream else 504)
            assert '"code":"deadline_exceeded"' in late.text
            server.model.free()
            await server.settle()

    asyncio.run(scenario())
