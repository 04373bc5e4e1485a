"""Tokens that the Messages API counts, before an answer and with it."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from radixserve.engine.frontend import TextDelta
from radixserve.engine.messages import Usage
from radixserve.server.app import create_app
from radixserve.server.service import Settings
from tests.server.fake import FakeFrontend
from tests.server.messages.asking import USER, counted, message, prompt_tokens, refused, told


def test_salts_part_what_would_be_shared(client: TestClient):
    def read(**fields: Any) -> int:
        return int(told(message(client, **fields))["usage"]["cache_read_input_tokens"])

    assert read() == 0
    assert read() > 0
    assert read(cache_salt="mine") == 0
    assert read(extra_key="mine") == 0
    assert read(cache_salt="mine") > 0


def test_counting_agrees_with_the_answer(client: TestClient, frontend: FakeFrontend):
    fields: dict[str, Any] = {
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1"}],
        "messages": [*USER, {"role": "assistant", "content": "Well,"}],
    }
    for each in (fields, {}, {"system": "Be kind."}):
        usage = told(message(client, **each))["usage"]
        assert counted(client, **each) == prompt_tokens(usage)
    generated = len(frontend.requests)
    counted(client)
    assert len(frontend.requests) == generated


def test_more_than_the_model_takes_can_be_counted(client: TestClient, frontend: FakeFrontend):
    long = "x" * frontend.card.max_model_len
    assert counted(client, messages=[{"role": "user", "content": long}]) > len(long)
    too_long = message(client, messages=[{"role": "user", "content": long}])
    assert refused(too_long) == ("messages", "context_length_exceeded")
    assert "prompt is too long" in too_long.json()["error"]["message"]


def test_counting_needs_no_free_place(frontend: FakeFrontend):
    frontend.waiting = 3
    with TestClient(create_app(frontend, settings=Settings(max_queue=3))) as client:
        assert message(client).status_code == 503
        assert counted(client) > 0


def test_what_is_new_in_the_cache_is_whole_blocks():
    def usage(page_size: int, prompt: int, cached: int, **card: Any) -> dict[str, int]:
        frontend = FakeFrontend()
        frontend.card = type(frontend.card)(
            name="m", max_model_len=99, vocab_size=256, created=1, page_size=page_size, **card
        )

        async def answered(request: Any, index: int, _: int):
            yield TextDelta(text="a", finish="stop", usage=Usage(prompt, 1, cached))

        frontend._answer = answered  # type: ignore[method-assign]
        with TestClient(create_app(frontend)) as client:
            return dict(told(message(client))["usage"])

    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    for card, sizes, counts in (
        ({}, (4, 30, 9), (2, 19, 9)),
        ({}, (4, 30, 29), (1, 0, 29)),
        ({}, (4, 3, 0), (3, 0, 0)),
        ({"prefix_cache": False}, (4, 30, 0), (30, 0, 0)),
    ):
        found = usage(*sizes, **card)
        assert tuple(found[name] for name in names) == counts


def test_what_leaves_nothing_in_the_cache_creates_nothing():
    frontend = FakeFrontend()
    frontend.card = type(frontend.card)(
        name="m", max_model_len=99, vocab_size=256, created=1, page_size=4
    )
    with TestClient(create_app(frontend)) as client:
        for mode, created in (("on", 16), ("read-only", 0), ("off", 0)):
            usage = told(message(client, cache={"mode": mode}, cache_salt=mode))["usage"]
            assert usage["cache_creation_input_tokens"] == created
            assert usage["cache_creation"]["ephemeral_5m_input_tokens"] == created
