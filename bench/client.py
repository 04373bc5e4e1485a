"""Sends workloads to a server and notes when answers come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families
from tqdm import tqdm

from bench.servers import Endpoint, ServerError
from bench.workloads import Conversation, Turn, Workload

COUNTERS = (
    "prompt_tokens",
    "prompt_tokens_cached",
    "computed_tokens",
    "generation_tokens",
    "num_preemptions",
    "evicted_pages",
)


@dataclass(slots=True)
class Sample:
    """One answer; moments in seconds from the start of the run."""

    sent: float
    first: float
    """The first chunk of the answer."""
    last: float
    prompt: int
    output: int
    """Tokens that the client asked for and got; padding is not among them."""
    cached: int = 0

    @property
    def to_first(self) -> float:
        return self.first - self.sent

    @property
    def per_token(self) -> float | None:
        """Seconds a token after the first; None if there was one token only."""
        return (self.last - self.first) / (self.output - 1) if self.output > 1 else None

    @property
    def end_to_end(self) -> float:
        return self.last - self.sent

    @property
    def normalized(self) -> float:
        """End-to-end latency over output tokens (Yu et al., OSDI 2022), in seconds a token."""
        return self.end_to_end / self.output


@dataclass(slots=True)
class Run:
    """What became of one workload on one server."""

    workload: Workload
    server: str
    samples: list[Sample] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    """In the order in which they were sent."""
    seconds: float = 0.0
    counters: dict[str, float] = field(default_factory=dict)
    """What the server's own counters rose by."""


class _Usage(msgspec.Struct):
    completion_tokens: int
    prompt_tokens_details: dict[str, Any] | None = None


class _Chunk(msgspec.Struct):
    """What is looked at of a streamed chunk."""

    choices: list[msgspec.Raw] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


def session(url: str, *, total: float | None = None) -> aiohttp.ClientSession:
    """For any number of requests to ``url`` at once; each may take ``total`` seconds."""
    return aiohttp.ClientSession(
        url,
        # Servers close connections that are idle, also while they stand still: none is kept.
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=total, sock_connect=30),
    )


async def when_idle(http: aiohttp.ClientSession) -> dict[str, float]:
    """The gauges and counters of our server once nothing runs and nothing waits.

    What a part left behind that was cut would be counted as the next one's.
    """
    while True:
        async with http.get("/metrics") as answer:
            text = await answer.text()
        found = {
            family.name.removeprefix("radixserve:"): sum(
                sample.value for sample in family.samples if "_created" not in sample.name
            )
            for family in text_string_to_metric_families(text)
            if family.type in ("gauge", "counter")
        }
        if not found["num_requests_running"] + found["num_requests_waiting"]:
            return found
        await asyncio.sleep(0.2)


class Connection:
    """One client of a server; an asynchronous context manager.

    The server is radixserve, or another one that takes token ids at ``/v1/completions``: that one
    has no ``counters``, and gets what it needs beyond the usual fields as ``extra``. The client
    shares the machine with what it measures, so it looks at little of what comes.
    """

    def __init__(
        self, endpoint: Endpoint, *, ours: bool = True, extra: dict[str, Any] | None = None
    ):
        self.endpoint = endpoint
        self._ours, self._extra = ours, extra or {}

    async def __aenter__(self) -> Connection:
        self._http = session(self.endpoint.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def counters(self) -> dict[str, float]:
        """The server's running totals, once it has nothing to do; none of a server not ours.

        Raises:
            ServerError: nobody answers.
        """
        if not self._ours:
            return {}
        with self._blamed():
            found = await when_idle(self._http)
        return {name: found[name] for name in COUNTERS}

    async def ask(
        self, turn: Turn, salt: str, start: float, *, sent: float | None = None
    ) -> Sample:
        """Stream one answer.

        ``start`` is the ``perf_counter`` that moments count from, ``sent`` the moment at which the
        client wanted to send (by default: now).

        Raises:
            ServerError: nobody answers.
            RuntimeError: the server refused or failed.
        """
        body = {
            "prompt": turn.prompt,
            "max_tokens": turn.output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"cache_salt": salt} if salt else {}),
            **self._extra,
        }
        sent = perf_counter() - start if sent is None else sent
        with self._blamed():
            async with self._http.post("/v1/completions", json=body) as answer:
                if answer.status != 200:
                    raise RuntimeError((await answer.text())[:300])
                first, last, usage = await _read(answer, start)
        return Sample(
            sent,
            first,
            last,
            len(turn.prompt),
            usage.completion_tokens,
            (usage.prompt_tokens_details or {}).get("cached_tokens", 0),
        )

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except (aiohttp.ClientError, TimeoutError) as error:
            self.endpoint.check()
            raise ServerError(
                f"server {self.endpoint.label!r} does not answer: {error!r}"
            ) from error


async def _read(answer: aiohttp.ClientResponse, start: float) -> tuple[float, float, _Usage]:
    """When the first and the last chunk with a choice came, and the usage that was told."""
    first = last = 0.0
    usage = None
    async for line in answer.content:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        chunk = _decode(line[6:])
        if chunk.error:
            raise RuntimeError(chunk.error["message"])
        if chunk.choices:
            last = perf_counter() - start
            first = first or last
        usage = chunk.usage or usage
    if usage is None:
        raise RuntimeError("the stream ended without usage")
    return first, last, usage


async def drive(
    connection: Connection, workload: Workload, salt: str, *, quiet: bool = False
) -> Run:
    """Send all of ``workload`` and wait for the answers.

    Prompts share only within ``salt``; without one, with all that came before.
    """
    run = Run(workload, connection.endpoint.label)
    gate = asyncio.Semaphore(workload.concurrency or len(workload.turns) or 1)
    before = await connection.counters()
    with tqdm(
        total=len(workload.turns),
        desc=f"{workload.name} [{run.server}]",
        leave=False,
        disable=quiet or None,
    ) as bar:
        start = perf_counter()
        async with _all_or_first_error() as group:
            for each in workload.conversations:
                group.create_task(_converse(connection, each, salt, start, gate, run, bar))
        run.seconds = perf_counter() - start
    after = await connection.counters()
    run.counters = {name: after[name] - before[name] for name in after}
    return run


async def _converse(
    connection: Connection,
    conversation: Conversation,
    salt: str,
    start: float,
    gate: asyncio.Semaphore,
    run: Run,
    bar: tqdm,
) -> None:
    await asyncio.sleep(start + conversation.start - perf_counter())
    for turn in conversation.turns:
        await asyncio.sleep(turn.pause)
        async with gate:
            run.prompts.append(turn.prompt)
            try:
                run.samples.append(await connection.ask(turn, salt, start))
            except RuntimeError as error:
                run.errors.append(str(error))
                return
            finally:
                bar.update()


@contextlib.asynccontextmanager
async def _all_or_first_error() -> AsyncGenerator[asyncio.TaskGroup, None]:
    """A task group that raises its first error itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
