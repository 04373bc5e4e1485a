"""Prompts that are computed before anybody waits for their answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.testclient import TestClient

from radixserve.server.keeping import HEADER
from tests.server.asking import CHAT, chat, error_of, part, refused, user
from tests.server.fake import FakeFrontend
from tests.server.stack import stack, usage


@pytest.mark.parametrize(
    "fields",
    [{"prewarm": True}, {"max_tokens": 0}, {"prompt_cache_options": {"prewarm": True}}],
    ids=lambda each: next(iter(each)),
)
def test_a_chat_that_only_warms_computes_what_the_next_one_needs(tmp_path, fields: Any):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            messages = [user(part("Who are you, and where?"))]
            warm = await server.ask(CHAT, messages=messages, **fields)
            assert warm.json()["choices"][0]["message"]["content"] in (None, "")
            assert usage(warm)["completion_tokens"] == 0
            asked = await server.ask(CHAT, messages=messages, max_tokens=2)
            found = usage(asked)["prompt_tokens_details"]["cached_tokens"]
            assert found == usage(warm)["prompt_tokens"]
            await server.settle()

    asyncio.run(scenario())


def test_what_chats_begin_with_is_computed_before_they_come(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            system = {"role": "system", "content": "Be kind to all who ask."}
            first = await server.ask("/v1/cache/prewarm", messages=[system], ttl="1h")
            warmed = first.json()
            assert warmed["computed_tokens"] == warmed["tokens"] > 8
            assert (warmed["keep"], warmed["kept_tokens"]) == ("granted", warmed["tokens"])
            assert first.headers[HEADER].startswith("granted")
            again = (await server.ask("/v1/cache/prewarm", messages=[system])).json()
            assert again["cached_tokens"] == again["tokens"] - 1
            assert again["keep"] is None
            for question in ("Who?", "And where?"):
                asked = await server.ask(
                    CHAT, messages=[system, user(part(question))], max_tokens=1
                )
                found = usage(asked)["prompt_tokens_details"]["cached_tokens"]
                assert found >= warmed["tokens"]
            await server.settle()

    asyncio.run(scenario())


def test_why_a_prewarming_computed_is_told_as_of_a_chat(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            messages = [{"role": "system", "content": "Be kind to all who ask."}]
            path = "/v1/cache/prewarm"
            first = (await server.ask(path, messages=messages, explain=True)).json()
            assert first["radixserve"]["reasons"] == {"cold": first["tokens"]}
            told = (await server.client.get(f"/v1/cache/requests/{first['id']}")).json()
            assert (told["reason"], told["prompt_tokens"]) == ("cold", first["tokens"])
            asked = await server.ask(CHAT, messages=[*messages, user(part("Who?"))], max_tokens=1)
            told = (await server.client.get(f"/v1/cache/requests/{asked.json()['id']}")).json()
            assert told["compared_with"] == first["id"]
            assert [each["reason"] for each in told["parts"]] == ["extended"]
            assert "radixserve" not in (await server.ask(path, messages=messages)).json()
            await server.settle()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "system", "content": "a"}], "ttl": "-1s"}, "ttl"),
        ({"messages": [{"role": "system", "content": 5}]}, "messages.0.content"),
    ],
)
def test_a_prewarming_that_cannot_be_is_refused_as_a_chat_is(tmp_path, body: Any, param: str):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            assert refused(await server.ask("/v1/cache/prewarm", **body))[0] == param

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/cache/prewarm"),
        ("PUT", "/v1/cache/prefixes/kind"),
        ("PUT", "/v1/cache/public/kind"),
    ],
)
def test_marks_of_another_api_are_listed_as_for_chats(tmp_path, method: str, path: str):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            marked = {
                "role": "system",
                "content": "Be kind to all who ask.",
                "cache_control": {"type": "ephemeral"},
            }
            answer = await server.client.request(method, path, json={"messages": [marked]})
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-radixserve-ignored"] == "messages.cache_control"
            await server.settle()

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["off", "read-only", "no-store"])
def test_a_prewarming_that_would_keep_nothing_is_refused(
    client: TestClient, frontend: FakeFrontend, mode: str
):
    body = {"messages": [{"role": "system", "content": "Hi"}], "cache": {"mode": mode}}
    for path, method in (("/v1/cache/prewarm", "POST"), ("/v1/cache/prefixes/a", "PUT")):
        answer = client.request(method, path, json=body)
        assert refused(answer) == ("cache.mode", "invalid_value")
        assert "keep nothing" in error_of(answer)["message"]
    for fields in ({"prewarm": True}, {"prompt_cache_options": {"prewarm": True}}):
        assert refused(chat(client, cache={"mode": mode}, **fields))[0] == "cache.mode"
    assert chat(client, cache={"mode": mode}, max_tokens=0).status_code == 200
    assert len(frontend.requests) == 1


def test_without_a_cache_nothing_can_be_prewarmed(client: TestClient, frontend: FakeFrontend):
    frontend.card = replace(frontend.card, prefix_cache=False)
    body = {"messages": [{"role": "system", "content": "Hi"}]}
    assert refused(client.post("/v1/cache/prewarm", json=body)) == (None, "unsupported_feature")
    assert refused(chat(client, prewarm=True)) == (None, "unsupported_feature")
