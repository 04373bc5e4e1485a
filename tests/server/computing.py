"""Chats over an engine that computes, with a tiny model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from radixserve.config import EngineConfig
from radixserve.engine.async_llm import AsyncLLM
from radixserve.server.app import create_app
from tests.server.asking import CHAT

Ask = Callable[..., Awaitable[httpx2.Response]]


@asynccontextmanager
async def computing(
    directory: Path, *, usual: dict[str, Any], **settings: Any
) -> AsyncIterator[tuple[AsyncLLM, Ask]]:
    """An engine, and how to ask it: ``usual`` holds where a request says nothing else."""
    settings = {"num_pages": 400, "page_size": 4, **settings}
    engine = AsyncLLM(EngineConfig(model=str(directory), dtype="float32", threads=1, **settings))
    await engine.start()
    transport = httpx2.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:

            async def ask(content: str = "Who?", **fields: Any) -> httpx2.Response:
                messages = [{"role": "user", "content": content}]
                body = {"messages": messages, "seed": 3, **usual, **fields}
                return await client.post(CHAT, json=body)

            yield engine, ask
    finally:
        await engine.stop()
