"""Whatever looks at a prompt has the tokens that the chat has, earlier answers as generated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from radixserve.engine.frontend import TextDelta, TextRequest
from radixserve.server.service import Settings
from radixserve.tokens import count, pack
from tests.server.asking import HANG
from tests.server.conversing import (
    CALL,
    SAID,
    STRIPPING,
    THOUGHTS,
    TOOL,
    cached,
    extends,
    saying,
    turn,
    user,
    whole,
)
from tests.server.stack import Stack

WRITTEN = '{"z": 1, "a": [2, "é"]}'
"""Arguments as no canonical form would have them."""
CALLING = f'\n<tool_call>\n{{"name": "look", "arguments": {WRITTEN}}}\n</tool_call>'


@pytest.mark.parametrize("keeps", [None, False, True])
@pytest.mark.parametrize("said", [CALL, f"<think>\nLook.\n</think>\n\n{CALL}"])
def test_a_chat_is_counted_with_its_answers_as_they_were_generated(
    tmp_path, said: str, keeps: bool | None
):
    async def scenario() -> None:
        settings = Settings(
            tool_call_parser="hermes", reasoning_parser="think", keep_reasoning=True
        )
        template = STRIPPING.replace("OPENING", "")
        async with saying(tmp_path, [said, "x"], template=template, server=settings) as server:
            messages = [user("Who?")]
            fields = {"tools": [TOOL], "keep_reasoning": keeps}
            last = await turn(server, messages, **fields)
            id = messages[-1]["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": id, "content": "Nobody."})
            counted = await server.ask("/tokenize", messages=messages, **fields)
            assert "x-radixserve-ignored" not in counted.headers
            body = await turn(server, messages, **fields)
            assert counted.json()["tokens"] == body["prompt_token_ids"]
            assert extends(body, last) == (said == CALL or keeps is not False)

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("sent", [None, {"z": 1, "a": [2, "é"]}, {"a": [2, "é"], "z": 1}])
@pytest.mark.parametrize("keeps", [False, True])
def test_canonical_forms_leave_calls_as_the_model_wrote_them(
    tmp_path, sent: dict[str, Any] | None, keeps: bool
):
    async def scenario() -> None:
        settings = Settings(canonical="json", tool_call_parser="hermes")
        template = STRIPPING.replace("OPENING", "")
        said = [CALLING, "hello", "x"]
        async with saying(tmp_path, said, template=template, server=settings) as server:
            messages = [user("Who?")]
            fields = {"tools": [TOOL], "keep_reasoning": keeps}
            last = await turn(server, messages, **fields)
            [call] = messages[-1]["tool_calls"]
            assert call["function"]["arguments"] == WRITTEN
            if sent is not None:
                call["function"]["arguments"] = json.dumps(sent, indent=1)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "Nobody."})
            shown = {"messages": messages, "tools": [TOOL]}
            told = (await server.ask("/tokenize", **shown)).json()["tokens"]
            body = await turn(server, messages, **fields)
            assert told == body["prompt_token_ids"]
            assert extends(body, last)
            messages.append(user("And?"))
            assert extends(await turn(server, messages, **fields), body)

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("changed", ["value", "name", "salt"])
def test_canonical_forms_order_calls_that_the_model_did_not_write(tmp_path, changed: str):
    async def scenario() -> None:
        settings = Settings(canonical="json", tool_call_parser="hermes")
        template = STRIPPING.replace("OPENING", "")
        async with saying(tmp_path, [CALLING, "x"], template=template, server=settings) as server:
            messages = [user("Who?")]
            await turn(server, messages, tools=[TOOL])
            function = messages[-1]["tool_calls"][0]["function"]
            arguments = {"z": 1, "a": 2} if changed == "value" else json.loads(WRITTEN)
            function["arguments"] = json.dumps(arguments)
            if changed == "name":
                function["name"] = "see"
            messages.append(user("And?"))
            fields = {"cache_salt": "other"} if changed == "salt" else {}
            body = await turn(server, list(messages), tools=[TOOL], **fields)
            function["arguments"] = json.dumps(arguments, sort_keys=True, ensure_ascii=False)
            expected = server.engine.tokenizer.encode_chat(messages, tools=[TOOL])
            assert pack(body["prompt_token_ids"]) == expected

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_a_lookup_sees_the_tokens_that_the_chat_will_have(tmp_path):
    async def scenario() -> None:
        template = STRIPPING.replace("OPENING", "")
        settings = Settings(reasoning_parser="think")
        said = [*SAID[:2], THOUGHTS[0], "x"]
        async with saying(tmp_path, said, template=template, server=settings) as server:
            messages: list[dict[str, Any]] = []
            last = None
            for index in range(len(said)):
                messages.append(user(f"Question {index}?"))
                fields = {"messages": messages, "keep_reasoning": True}
                look = (await server.ask("/v1/cache/lookup", **fields)).json()
                body = await turn(server, messages, keep_reasoning=True)
                assert look["cached_tokens"] == cached(body)
                assert look["prompt_tokens"] == body["usage"]["prompt_tokens"]
                assert last is None or extends(body, last)
                last = body

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("how", ["reset", "tenant", "session"])
def test_what_is_purged_is_neither_found_nor_compared_with(tmp_path, how: str):
    async def scenario() -> None:
        async with saying(tmp_path, SAID) as server:
            salted = {"cache_salt": "mine"}
            messages = [user("Who?")]
            last = await turn(server, messages, **salted)
            await server.settle()
            match how:
                case "reset":
                    response = await server.client.post("/reset_prefix_cache")
                case "tenant":
                    response = await server.client.delete("/v1/cache/tenants/self")
                case _:
                    response = await server.ask("/v1/cache/purge", **salted)
            assert response.status_code == 200, response.text
            messages.append(user("And?"))
            plain = server.engine.tokenizer.encode_chat(messages)
            body = await turn(server, messages, **salted)
            assert pack(body["prompt_token_ids"]) == plain
            assert not extends(body, last)
            told = (await server.client.get(f"/v1/cache/requests/{body['id']}")).json()
            assert told["reason"] == ("reset" if how == "reset" else "purged")
            assert told["compared_with"] is None

    asyncio.run(asyncio.wait_for(scenario(), HANG))


KEEP = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def marks(server: Stack) -> list[list[int]]:
    """The places that are marked in prompts from now on, in tokens, one list for each request."""
    found: list[list[int]] = []
    generate = server.engine.generate

    def asked(request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        kept = () if request.keeping is None else request.keeping.marks
        found.append([mark.tokens for mark in kept if mark.tokens is not None])
        return generate(request)

    server.engine.generate = asked  # type: ignore[method-assign]
    return found


def shown(server: Stack, body: dict[str, Any], tokens: int) -> str:
    """The text of the first ``tokens`` of a prompt."""
    ids = body["prompt_token_ids"][:tokens]
    return server.engine.tokenizer.decode(ids, skip_special_tokens=False)


def test_marks_are_counted_in_the_tokens_that_the_prompt_has(tmp_path):
    async def scenario() -> None:
        async with saying(tmp_path, [*SAID[:3], "x"]) as server:
            messages: list[dict[str, Any]] = []
            for index in range(3):
                messages.append(user(f"Question {index}?"))
                last = await turn(server, messages)
            places = marks(server)
            messages.append(user("And?"))
            asked = [
                each | KEEP if index in (1, 3, 4, 6) else each
                for index, each in enumerate(messages)
            ]
            body = await turn(server, asked)
            assert extends(body, last)
            [found] = places
            assert len(found) == 4
            for tokens, index in zip(found, (1, 3, 4, 6), strict=True):
                text = shown(server, body, tokens)
                assert text.endswith(f"\n{messages[index]['content']}")
                assert text.count("<|im_start|>") == index + 1
            plain = server.engine.tokenizer.encode_chat(messages)
            assert len(body["prompt_token_ids"]) > count(plain), "the tokens would be the same"

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("index", [1, 3, 4])
def test_a_mark_on_an_answer_with_its_reasoning_is_at_its_end(tmp_path, index: int):
    async def scenario() -> None:
        template = STRIPPING.replace("OPENING", "")
        settings = Settings(reasoning_parser="think", tool_call_parser="hermes")
        said = [THOUGHTS[0], f"<think>\nLook.\n</think>\n\n{CALL}", "x"]
        async with saying(tmp_path, said, template=template, server=settings) as server:
            fields = {"keep_reasoning": True, "tools": [TOOL]}
            messages = [user("Who?")]
            await turn(server, messages, **fields)
            messages.append(user("And?"))
            last = await turn(server, messages, **fields)
            messages.append({"role": "tool", "tool_call_id": "1", "content": "Nobody."})
            places = marks(server)
            messages[index] |= KEEP
            body = await turn(server, messages, **fields)
            assert extends(body, last)
            ends = {1: THOUGHTS[0], 3: said[1], 4: "Nobody."}
            [[tokens]] = places
            text = shown(server, body, tokens)
            assert text.endswith(ends[index])
            assert text.count("<|im_start|>") == index + 1

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("keeps", [False, True])
def test_what_is_prewarmed_has_the_tokens_that_were_generated(tmp_path, keeps: bool):
    async def scenario() -> None:
        template = STRIPPING.replace("OPENING", "")
        settings = Settings(reasoning_parser="think", keep_reasoning=keeps)
        said = [THOUGHTS[0] if keeps else "hello the", "x"]
        async with saying(tmp_path, said, template=template, server=settings) as server:
            messages = [user("Who?")]
            last = await turn(server, messages)
            warmed = (await server.ask("/v1/cache/prewarm", messages=messages)).json()
            assert warmed["cached_tokens"] >= len(whole(last)) - 1
            messages.append(user("And?"))
            body = await turn(server, messages)
            assert extends(body, last)
            assert cached(body) >= warmed["tokens"] > len(whole(last))

    asyncio.run(asyncio.wait_for(scenario(), HANG))
