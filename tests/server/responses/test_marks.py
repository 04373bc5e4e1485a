"""OpenAI's marks in the items of a response's input, and its prewarming."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixserve.server.keeping import HEADER
from tests.server.asking import refused
from tests.server.responses.told import PATH
from tests.server.stack import stack

BREAK = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "input_text", "text": said, **fields}


def item(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


@pytest.mark.parametrize(
    "marked",
    [
        [item("user", text("Be kind.", **BREAK), text("Who?"))],
        [item("user", text("Be kind.", **BREAK)), item("user", text("Who?"))],
        [item("developer", text("Be kind.", **BREAK)), item("user", text("Who?"))],
    ],
)
def test_marks_of_items_are_kept_and_are_no_part_of_the_prompt(tmp_path, marked: Any):
    plain = [
        {**each, "content": [text(part["text"]) for part in each["content"]]} for each in marked
    ]

    async def scenario() -> None:
        async with stack(tmp_path, page_size=4, keep_share=1.0) as server:
            fields: dict[str, Any] = {"max_output_tokens": 2}
            first = await server.ask(PATH, input=marked, **fields)
            assert first.headers[HEADER].startswith("granted")
            assert "x-radixserve-ignored" not in first.headers
            second = (await server.ask(PATH, input=plain, **fields)).json()["usage"]
            cached = second["input_tokens_details"]["cached_tokens"]
            assert cached == second["input_tokens"] - 1
            await server.settle()

    asyncio.run(scenario())


def test_a_response_goes_on_from_a_marked_one(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            first = await server.ask(
                PATH, input=[item("user", text("Who?", **BREAK))], max_output_tokens=2
            )
            again = await server.ask(
                PATH, input="And?", previous_response_id=first.json()["id"], max_output_tokens=2
            )
            assert again.status_code == 200

    asyncio.run(scenario())


def test_a_prewarming_response_says_nothing(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            options = {"prewarm": True, "ttl": "30m"}
            fields = {"input": "Who are you?", "prompt_cache_options": options}
            warm = (await server.ask(PATH, **fields)).json()
            assert (warm["output"], warm["usage"]["output_tokens"]) == ([], 0)
            asked = (await server.ask(PATH, input="Who are you?", max_output_tokens=2)).json()
            cached = asked["usage"]["input_tokens_details"]["cached_tokens"]
            assert cached == warm["usage"]["input_tokens"]
            await server.settle()

    asyncio.run(scenario())


def test_a_time_that_cannot_be_is_refused_by_its_item(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            mark = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "-1m"}}
            answer = await server.ask(PATH, input=[item("user", text("a", **mark))])
            assert refused(answer) == ("input.0.prompt_cache_breakpoint.ttl", "invalid_value")

    asyncio.run(scenario())
