"""The same question of several tenants, on every route that generates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from radixserve.server.tenants.registry import Registry
from tests.server.asking import CHAT, COMPLETIONS, error_of, events
from tests.server.messages.asking import PATH as MESSAGES
from tests.server.messages.asking import accumulated
from tests.server.messages.asking import error_of as anthropic_error_of
from tests.server.responses.told import PATH as RESPONSES
from tests.server.responses.told import events as told
from tests.server.stack import Stack, cached, stack
from tests.server.tenants.people import KEYS, registry

LONG = "The same words, which nobody else may find, and which go on for a while."
GENERATE = "/generate"
ROUTES = [COMPLETIONS, CHAT, MESSAGES, RESPONSES, GENERATE]


@asynccontextmanager
async def shared(
    directory: Path, tenants: Registry | None = None, **settings: Any
) -> AsyncIterator[Stack]:
    async with stack(directory, tenants=tenants or registry(), **settings) as server:
        yield server


def body(path: str, text: str = LONG, *, stream: bool = False, most: int = 2) -> dict[str, Any]:
    if path == GENERATE:
        return {"text": text, "sampling_params": {"max_new_tokens": most}, "stream": stream}
    if path == RESPONSES:
        return {"input": text, "max_output_tokens": most, "stream": stream}
    prompt: dict[str, Any] = {"prompt": text}
    if path in (CHAT, MESSAGES):
        prompt = {"messages": [{"role": "user", "content": text}]}
    more = {"stream_options": {"include_usage": True}} if stream and path != MESSAGES else {}
    return {**prompt, "max_tokens": most, "stream": stream, **more}


def reused(path: str, answer: httpx2.Response) -> int:
    assert answer.status_code == 200, answer.text
    if path in (COMPLETIONS, CHAT):
        return cached(answer)
    streamed = answer.headers["content-type"].startswith("text/event-stream")
    if path == MESSAGES:
        message = accumulated(answer) if streamed else answer.json()
        return int(message["usage"]["cache_read_input_tokens"])
    if path == RESPONSES:
        response = told(answer)[-1]["response"] if streamed else answer.json()
        return int(response["usage"]["input_tokens_details"]["cached_tokens"])
    last = events(answer)[-1] if streamed else answer.json()
    return int(last["meta_info"]["cached_tokens"])


def param_of(path: str, answer: httpx2.Response) -> str:
    """The field for which a request was refused."""
    if path == MESSAGES:
        return str(anthropic_error_of(answer)["details"]["param"])
    return str(error_of(answer)["param"])


async def ask(
    server: Stack, name: str, path: str = COMPLETIONS, text: str = LONG, **fields: Any
) -> int:
    """Tokens that were reused of the same question, asked by ``name``."""
    stream = bool(fields.pop("stream", False))
    sent = {**body(path, text, stream=stream), **fields}
    return reused(path, await server.ask(path, key=KEYS[name], **sent))
