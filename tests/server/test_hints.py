"""Names of sessions, users and places are hints: none of them finds less than no hint does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.server.asking import CHAT
from tests.server.stack import cached, stack, usage

SYSTEM = {"role": "system", "content": "You help people who live by the sea."}


def talk(question: str) -> list[dict[str, Any]]:
    return [SYSTEM, {"role": "user", "content": question}]


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({}, {"session_id": "s"}),
        ({}, {"session_id": "s", "session_end": True}),
        ({}, {"prompt_cache_key": "k"}),
        ({}, {"user": "u"}),
        ({}, {"safety_identifier": "u"}),
        ({}, {"priority": 5}),
        ({}, {"id_slot": 3}),
        ({}, {"id_slot": -1, "cache_prompt": True}),
        ({}, {"data_parallel_rank": 1}),
        ({"x-session-id": "s"}, {}),
        ({"x-claude-code-session-id": "a", "x-claude-code-agent-id": "b"}, {}),
        ({"x-data-parallel-rank": "1"}, {}),
    ],
)
def test_a_hint_finds_what_no_hint_finds(
    tmp_path: Path, headers: dict[str, str], fields: dict[str, Any]
):
    async def scenario() -> None:
        async with stack(tmp_path) as server:

            async def ask(question: str, hinted: bool = True) -> tuple[int, int]:
                """How many tokens of the prompt were reused, and how many it has."""
                body = {"messages": talk(question), "max_tokens": 1}
                answer = await server.client.post(
                    CHAT,
                    json=body | (fields if hinted else {}),
                    headers=headers if hinted else {},
                )
                return cached(answer), usage(answer)["prompt_tokens"]

            await ask("What is a fjord?", hinted=False)
            # The session, user or place has nothing of its own yet.
            reused, length = await ask("What is a fjord?")
            assert reused == length - 1
            # By now it has, and others have more.
            await ask("Who keeps the lighthouse?", hinted=False)
            reused, length = await ask("Who keeps the lighthouse?")
            assert reused == length - 1
            # And others find what came with it.
            await ask("When is high tide?")
            reused, length = await ask("When is high tide?", hinted=False)
            assert reused == length - 1

    asyncio.run(scenario())
