"""Answers from a model in this process."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from typing import Any, Self

from radixserve.cache.namespace import client_namespace
from radixserve.config import EngineConfig
from radixserve.engine.async_llm import AsyncLLM
from radixserve.engine.frontend import Frontend, TextDelta, TextRequest
from radixserve.errors import RadixServeError
from radixserve.scheduling.sampling import SamplingParams
from radixserve.terminal.answer import Message, Piece, Pieces, TokenCounts


class InProcess:
    """An engine and the event loop that it needs, for a program that has none.

    The engine computes on a thread of its own, so that Ctrl-C never hits it in mid-step.

    Raises:
        InvalidRequestError: a sampling setting is out of its range.
        ConfigError, ModelError: when it is entered: the model cannot be served.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        salt: str | None = None,
        frontend: Frontend | None = None,
    ):
        settings = {"temperature": temperature, "max_tokens": max_tokens}
        self._chosen: dict[str, Any] = {
            name: value for name, value in settings.items() if value is not None
        }
        self._sampling = SamplingParams(**self._chosen)
        self._namespace = client_namespace(salt)
        self._frontend = frontend or AsyncLLM(EngineConfig(model=model))
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        try:
            self._runner.run(self._frontend.start())
        except BaseException:
            self._runner.close()
            raise
        self._sampling = SamplingParams(**{**self._frontend.card.defaults, **self._chosen})
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._runner.run(self._frontend.stop())
        finally:
            self._runner.close()

    @property
    def name(self) -> str:
        return self._frontend.card.name

    def stream(self, messages: list[Message]) -> Pieces:
        """The answer to ``messages`` as it comes.

        Raises:
            RadixServeError: the conversation is too long, or the engine failed.
        """
        request = TextRequest(
            id=uuid.uuid4().hex,
            prompt=self._frontend.tokenizer.encode_chat(messages),
            sampling=self._sampling,
            namespace=self._namespace,
        )
        deltas = self._frontend.generate(request)
        try:
            while (delta := self._runner.run(_next(deltas))) is not None:
                if delta.error is not None:
                    raise RadixServeError(delta.error)
                usage = delta.usage
                yield Piece(
                    text=delta.text,
                    finish=delta.finish,
                    counts=TokenCounts(
                        usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
                    ),
                )
        finally:
            self._runner.run(deltas.aclose())

    def cache_line(self) -> str:
        """The state of the cache, in words."""
        stats = self._frontend.stats()
        return (
            f"cache: {stats.pages_evictable:,} of {stats.pages_total:,} pages keep prefixes in "
            f"{stats.radix_nodes:,} nodes of the tree; {stats.evicted_pages:,} were evicted"
        )


async def _next(deltas: AsyncGenerator[TextDelta, None]) -> TextDelta | None:
    return await anext(deltas, None)
