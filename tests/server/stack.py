"""The HTTP API over an engine that computes, with a model that checks its KV, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from starlette.applications import Starlette

from radixserve.engine.async_llm import AsyncLLM
from radixserve.server.app import create_app
from radixserve.server.prefixes import Prefixes
from radixserve.server.recording import Recorder
from radixserve.server.service import Settings
from radixserve.server.tenants.audit import Audit
from radixserve.server.tenants.registry import Registry
from tests.engine.saying import SayingModel
from tests.engine.simulated import idle, running
from tests.server.asking import COMPLETIONS, events


@dataclass
class Stack:
    engine: AsyncLLM
    model: SayingModel
    app: Starlette
    client: httpx2.AsyncClient

    async def send(self, path: str, body: str) -> httpx2.Response:
        headers = {"content-type": "application/json"}
        return await self.client.post(path, content=body, headers=headers)

    async def ask(
        self, path: str = COMPLETIONS, *, key: str | None = None, **fields: Any
    ) -> httpx2.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return await self.client.post(path, json=fields, headers=headers)

    async def settle(self) -> None:
        """Wait until nothing runs, and see that every page is free or cold."""
        await idle(self.engine)
        stats = self.engine.stats()
        assert stats.pages_free + stats.pages_evictable == stats.pages_total

    async def steps(self, count: int) -> None:
        """Let ``count`` more steps begin while the model is held."""
        last = self.model.steps + count
        self.model.allow(count)
        while self.model.steps < last:
            await asyncio.sleep(0)


@asynccontextmanager
async def stack(
    directory: Path,
    *,
    server: Settings | None = None,
    tenants: Registry | None = None,
    audit: Audit | None = None,
    recorder: Recorder | None = None,
    prefixes: Prefixes | None = None,
    **settings: object,
) -> AsyncIterator[Stack]:
    """``settings`` are the engine's."""
    async with running(directory, **settings) as (engine, model, _):
        app = create_app(
            engine,
            settings=server,
            tenants=tenants,
            audit=audit,
            recorder=recorder,
            prefixes=prefixes,
        )
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url="http://here") as client,
        ):
            yield Stack(engine, model, app, client)


def said(response: httpx2.Response, index: int = 0) -> str:
    """The text of a choice of a completion, streamed or whole."""
    assert response.status_code == 200, response.text
    if not response.headers["content-type"].startswith("text/event-stream"):
        return str(response.json()["choices"][index]["text"])
    choices = [choice for chunk in events(response) for choice in chunk["choices"]]
    return "".join(choice["text"] for choice in choices if choice["index"] == index)


def usage(response: httpx2.Response) -> dict[str, Any]:
    """Of a whole answer, or of a stream that was asked for it."""
    streamed = response.headers["content-type"].startswith("text/event-stream")
    body = events(response)[-1] if streamed else response.json()
    return dict(body["usage"])


def cached(response: httpx2.Response) -> int:
    return int(usage(response)["prompt_tokens_details"]["cached_tokens"])
