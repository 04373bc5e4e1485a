"""Chats, and what a server then knows of how much of them it had to compute."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.server.asking import CHAT
from tests.server.stack import Stack, stack

Scenario = Callable[[Stack], Awaitable[None]]
SYSTEM = "You help people who live by the sea. It is 2026-11-30 12:04:17 now. Be brief and kind."
QUESTION = "What is a fjord?"


def run(directory: Path, scenario: Scenario, **settings: Any) -> None:
    async def within() -> None:
        async with stack(directory, **settings) as server:
            await scenario(server)

    asyncio.run(within())


async def explained(server: Stack, response: Any) -> dict[str, Any]:
    """What is known of a request, by the id of its answer."""
    found = await server.client.get(f"/v1/cache/requests/{response.json()['id']}")
    assert found.status_code == 200, found.text
    told = dict(found.json())
    assert told["cached_tokens"] + told["computed_tokens"] == told["prompt_tokens"]
    return told


def talk(system: str = SYSTEM, *turns: str) -> list[dict[str, str]]:
    said = [{"role": "system", "content": system}]
    for place, each in enumerate(turns or (QUESTION,)):
        said.append({"role": "assistant" if place % 2 else "user", "content": each})
    return said


async def chat(server: Stack, messages: list[dict[str, str]], **fields: Any) -> Any:
    return await server.ask(CHAT, messages=messages, max_tokens=1, **fields)
