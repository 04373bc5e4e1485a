"""Turn by turn the prompt is found in the cache, whatever clients mark and count in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.messages.asking import PATH, accumulated, prompt_tokens
from tests.server.stack import stack

MARK = {"cache_control": {"type": "ephemeral"}}


def block(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("odd", [False, True], ids=["plain", "as coding agents have it"])
def test_from_the_second_turn_on_the_last_prompt_is_read_from_the_cache(
    tmp_path, stream: bool, odd: bool
):
    """Odd: a header that counts requests comes first, and the mark moves on with the last turn."""

    async def scenario() -> None:
        async with stack(tmp_path) as server:
            messages: list[dict[str, Any]] = []
            before = 0
            questions = ("Who?", "Where?", "When?")
            for turn, question in enumerate(questions):
                messages.append({"role": "user", "content": [block(question)]})
                system: Any = "Be kind to all who ask."
                if odd:
                    header = f"x-anthropic-billing-header: cc_version=1; cch={turn}abc;"
                    system = [block(header), block(system, **MARK)]
                    messages[-1]["content"] = [block(question, **MARK)]
                    if turn:
                        messages[-3]["content"] = questions[turn - 1]
                fields = {"system": system, "messages": messages}
                response = await server.ask(
                    PATH, max_tokens=8, temperature=0, stream=stream, **fields
                )
                found = accumulated(response) if stream else response.json()
                usage = found["usage"]
                count = await server.ask(f"{PATH}/count_tokens", **fields)
                assert count.json()["input_tokens"] == prompt_tokens(usage)
                read = usage["cache_read_input_tokens"]
                assert read >= before
                assert (read > 0) == (turn > 0)
                assert usage["cache_creation_input_tokens"] > 0
                # At most the block in which the turn before ended is computed once more.
                before = prompt_tokens(usage) // 4 * 4
                messages.append({"role": "assistant", "content": found["content"]})
            await server.settle()

    asyncio.run(scenario())


def test_a_prompt_that_fills_the_cache_is_found_by_the_next_one(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            fields = {"messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0}
            empty = (await server.ask(PATH, max_tokens=0, **fields)).json()
            assert (empty["content"], empty["usage"]["cache_read_input_tokens"]) == ([], 0)
            usage = (await server.ask(PATH, max_tokens=4, **fields)).json()["usage"]
            assert usage["cache_read_input_tokens"] == prompt_tokens(empty["usage"]) > 0
            await server.settle()

    asyncio.run(scenario())
