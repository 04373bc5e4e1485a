"""Whoever goes on from a stored response finds the conversation so far in the prefix cache."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.server.asking import CHAT
from tests.server.stack import stack

ROUTE = "/v1/responses"


def test_from_the_second_turn_on_a_conversation_is_cached(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            last: dict[str, Any] | None = None
            length = 0
            for turn in range(4):
                previous = {"previous_response_id": last["id"]} if last else {}
                response = await server.ask(
                    ROUTE,
                    input=f"Question {turn}?",
                    instructions="Be good.",
                    max_output_tokens=20,
                    temperature=0,
                    **previous,
                )
                last = response.json()
                usage = last["usage"]
                cached = usage["input_tokens_details"]["cached_tokens"]
                # All that was computed: the last prompt, and its answer but for the last token.
                assert cached >= length
                assert usage["input_tokens"] > length
                length = usage["input_tokens"] + usage["output_tokens"] - 1
            await server.settle()

    asyncio.run(scenario())


def test_a_conversation_that_is_sent_as_chat_shares_its_prefix(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            question = {"role": "user", "content": "What is a tree?"}
            first = (await server.ask(ROUTE, input=[question], max_output_tokens=20)).json()
            said = first["output"][0]["content"][0]["text"]
            messages = [question, {"role": "assistant", "content": said}, question]
            second = (await server.ask(CHAT, messages=messages, max_tokens=2)).json()
            cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached >= first["usage"]["input_tokens"]
            await server.settle()

    asyncio.run(scenario())


def test_a_prompt_that_the_cache_can_never_hold_is_refused_as_input(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, num_pages=4) as server:
            for stream in (False, True):
                response = await server.ask(ROUTE, input="x" * 200, stream=stream)
                assert response.status_code == 400
                error = response.json()["error"]
                assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
            await server.settle()

    asyncio.run(scenario())
