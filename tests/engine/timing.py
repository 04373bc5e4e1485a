"""Times that are over when a test says so, and not by the clock of a machine that is shared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from radixserve.engine import streams
from radixserve.engine.async_llm import AsyncLLM

LONG_AGO = 10_000.0
"""Seconds."""


@contextmanager
def long_ago() -> Iterator[None]:
    """Who asks meanwhile asked so long ago: it has waited for longer than any queue allows."""
    with pytest.MonkeyPatch.context() as patch:
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() - LONG_AGO)
        patch.setattr(streams, "time", clock)
        yield


class Timeouts:
    """The timeouts of requests, which end together when it is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self._inboxes: list[streams.Inbox] = []
        monkeypatch.setattr(streams, "_alarms", self._set)

    def end(self) -> None:
        for inbox in self._inboxes:
            inbox.put_nowait(streams.Deadline())
        self._inboxes.clear()

    def _set(self, inbox: streams.Inbox, timeout: float | None) -> list[asyncio.TimerHandle]:
        if timeout is not None:
            self._inboxes.append(inbox)
        return []


async def generated(engine: AsyncLLM, tokens: int) -> None:
    """Wait until so many are, and have been told."""
    while engine.stats().generated_tokens < tokens:
        await asyncio.sleep(0)


async def under_way(engine: AsyncLLM, answers: int) -> None:
    """Wait until so many are under way."""
    while len(engine._streams._inboxes) < answers:
        await asyncio.sleep(0)
