"""What the routes that generate share: the engine, its metrics, and an end when the client goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import time
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from radixserve.cache.namespace import of_tenant
from radixserve.cache.terms import Kept
from radixserve.engine.frontend import Frontend, TextDelta, TextRequest
from radixserve.engine.messages import Usage
from radixserve.errors import (
    ContextLengthError,
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
)
from radixserve.server.dialect import Dialect
from radixserve.server.errors import AnswerError
from radixserve.server.explained import Explainer
from radixserve.server.limits import BODY_LIMIT
from radixserve.server.metrics import Metrics
from radixserve.server.metrics_compat import Peer
from radixserve.server.recording import Recorder
from radixserve.server.step import Step
from radixserve.server.tenants.audit import Audit
from radixserve.server.tenants.registry import Registry
from radixserve.server.tenants.visit import Visit
from radixserve.server.text_memory import Encoded, Owner, Piece, TextMemory
from radixserve.text.canonical import Canonical
from radixserve.text.parsing.formats import AUTO, choose, reasoning_formats, tool_formats
from radixserve.tokens import count

log = logging.getLogger(__name__)

FILES_LIMIT = 10 * 2**30

P = ParamSpec("P")
T = TypeVar("T")
Deltas = AsyncGenerator[tuple[int, TextDelta], None]
"""News of answers, each with the place of its prompt among the request's prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the server itself. Times are in seconds."""

    body_limit: int = BODY_LIMIT
    """Bytes of a request's body."""
    keep_alive: float = 10.0
    """A stream that was silent for so long sends a comment."""
    grace: float = 0.05
    """How long a stream waits for a refusal by the engine before its headers leave."""
    max_queue: int | None = None
    """Requests that may wait in the engine; more are refused before they are tokenized."""
    priorities: bool = False
    """Whether the engine orders by priority; if not, a priority is listed as ignored."""
    drain_timeout: float = 30.0
    """How long what runs may go on once the server is told to end."""
    files_dir: Path | None = None
    """Where files and batches are kept; without it there are none."""
    files_limit: int = FILES_LIMIT
    """Bytes that the files of one tenant may take, unless its own limits say."""
    tenants_file: Path | None = None
    """Who may use the server; without it, and without keys, everybody may."""
    api_keys: tuple[str, ...] = ()
    """In place of such a file: of whoever may do everything."""
    audit_log: Path | None = None
    """Where a line is written for each request."""
    record_trace: Path | None = None
    """Where prompts are recorded, as hashes."""
    prefixes_file: Path | None = None
    """Named prefixes that are computed at the start."""
    metrics_compat: Peer | None = None
    """Whose names ``/metrics`` shows beside our own."""
    text_threads: int = 4
    """Prompts that are rendered and tokenized at once."""
    tool_call_parser: str = AUTO
    """How tool calls are written; auto is what the chat template says, none leaves them in the
    text."""
    reasoning_parser: str = AUTO
    """Likewise of reasoning."""
    canonical: str = ""
    """Forms that prompts are brought to before they are rendered, with commas between."""
    keep_reasoning: bool = False
    """Whether earlier answers stay in prompts as they were generated, unless a request says."""

    def __post_init__(self) -> None:
        """Raises:
        ConfigError: there is no parser, or no form, of such a name.
        """
        Canonical.of(self.canonical)
        choose(self.tool_call_parser, tool_formats(), "", "--tool-call-parser")
        choose(self.reasoning_parser, reasoning_formats(), "", "--reasoning-parser")


class Service:
    """The engine as the routes use it."""

    def __init__(
        self,
        frontend: Frontend,
        settings: Settings | None = None,
        tenants: Registry | None = None,
        audit: Audit | None = None,
        recorder: Recorder | None = None,
    ):
        self.frontend = frontend
        self.settings = settings = settings or Settings()
        self.tenants = tenants = tenants or Registry()
        self.audit = audit or Audit()
        self.recorder = recorder or Recorder()
        self.explainer = Explainer(frontend, lambda: len(tenants.tenants))
        self.metrics = Metrics(frontend, lambda: tenants.tenants, settings.metrics_compat)
        self.canonical = Canonical.of(settings.canonical)
        self.memory = TextMemory(lambda: frontend.tokenizer)
        tenants.serve(frontend)
        tenants.forgetting += [self.explainer.trail.forget, self.memory.forget]
        self.draining = False
        """Whether the server goes down as soon as what runs has ended."""
        self._ending: set[asyncio.Task[int | None]] = set()
        self.large_bodies = anyio.CapacityLimiter(1)
        """One at a time is decoded, so that their memory does not add up."""
        self._text_work = anyio.CapacityLimiter(settings.text_threads)
        self._dialect: Dialect | None = None

    @property
    def dialect(self) -> Dialect:
        """How the model writes tool calls and reasoning: known once it is loaded."""
        if self._dialect is None:
            settings = self.settings
            self._dialect = Dialect.of(
                self.frontend.tokenizer, settings.tool_call_parser, settings.reasoning_parser
            )
        return self._dialect

    def check_load(self) -> None:
        """Raises OverloadedError: the queue is full, or nothing new is taken any more."""
        if self.draining:
            raise OverloadedError("The server is shutting down.")
        limit = self.settings.max_queue
        if limit is not None and (waiting := self.frontend.stats().waiting) >= limit:
            raise OverloadedError(
                f"{waiting} requests are waiting already; try again later.",
                retry_after=self.frontend.retry_after(),
            )

    async def end_session(self, tenant: str, narrow: bytes, session: str) -> int | None:
        """As ``Frontend.end_session``, of a conversation in ``narrow``, a part of the tenant's
        cache."""
        namespace = of_tenant(tenant or None, narrow)
        return await self.frontend.end_session(tenant, namespace, session)

    def end_session_soon(self, tenant: str, narrow: bytes, session: str) -> None:
        """The same where nobody waits to hear of it."""
        task = asyncio.create_task(self.end_session(tenant, narrow, session))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def text_work(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """What ``work``, which renders or tokenizes, returns; it runs on a thread."""
        return await anyio.to_thread.run_sync(
            partial(work, *args, **named), limiter=self._text_work
        )

    def encoded(
        self, text: str, owner: Owner | None, *, param: str, add_special_tokens: bool
    ) -> Encoded:
        """A prompt in tokens; one that is too long is refused before it costs much. What is
        remembered for ``owner`` is not tokenized again, and an answer can be remembered too.

        Raises:
            ContextLengthError: it leaves no room for an answer.
            InvalidRequestError: it is empty, or no valid text.
        """
        tokenizer = self.frontend.tokenizer
        self.check_length(tokenizer.fewest_tokens(text), param, at_least=True)
        special = add_special_tokens and tokenizer.adds_tokens
        if special:
            encoded = Encoded([Piece(text, tokenizer.encode(text, param=param))], special=True)
        else:
            encoded = self.memory.encode(text, owner, param=param)
        if not encoded.tokens:
            raise InvalidRequestError(f"{param} must not be empty.", param=param)
        self.check_length(count(encoded.tokens), param)
        return encoded

    def check_length(self, tokens: int, param: str, *, at_least: bool = False) -> None:
        """Raises ContextLengthError: a prompt of ``tokens`` leaves no room for an answer, ever."""
        limit = self.frontend.card.longest
        if tokens >= limit:
            raise ContextLengthError(tokens, limit, param=param, at_least=at_least)

    def answers(
        self, requests: Sequence[TextRequest], visit: Visit, *, at_once: int | None = None
    ) -> Deltas:
        """News of all ``requests``, which run at the same time, or as many as are given to the
        engine ``at_once``. Closing it aborts what is left.

        Nothing is generated but through here, and here for the tenant that ``visit`` is of. Where
        the time is over for some before they have begun, and others have, these end empty.

        Raises:
            ApiError: the tenant may not use the model, or not now.
            AnswerError: one answer failed; the others are aborted.
            RadixServeError: what ``Frontend.generate`` raises.
        """
        if not self.settings.priorities and any(each.priority for each in requests):
            visit.ignored.append("priority")
        return self._answers(requests, visit, at_once or len(requests))

    async def _answers(self, requests: Sequence[TextRequest], visit: Visit, at_once: int) -> Deltas:
        requests, tally = visit.admit(requests, self.frontend.card), visit.tally
        if len(requests) == 1:
            async with aclosing(self._answer(0, requests[0], visit)) as deltas:
                async for delta in deltas:
                    yield delta
            return
        queue: asyncio.Queue[tuple[int, TextDelta] | Exception | None] = asyncio.Queue()
        gate = asyncio.Semaphore(at_once)
        late: dict[int, DeadlineError] = {}
        """By place, those that have not begun in time."""

        async def pump(prompt: int, request: TextRequest) -> None:
            try:
                async with gate, aclosing(self._answer(prompt, request, visit)) as deltas:
                    async for delta in deltas:
                        queue.put_nowait(delta)
                queue.put_nowait(None)
            except DeadlineError as error:
                late[prompt] = error
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.create_task(pump(i, request)) for i, request in enumerate(requests)]
        try:
            left = len(tasks)
            while left:
                news = await queue.get()
                if isinstance(news, Exception):
                    raise news
                if news is None:
                    left -= 1
                else:
                    yield news
        finally:
            await cancelled(*tasks)
        if len(late) == len(requests):
            raise late[0]
        for prompt in late:
            for end in _empty(requests[prompt]):
                tally.take(prompt, end.index, end.usage)
                yield prompt, end

    async def _answer(self, prompt: int, request: TextRequest, visit: Visit) -> Deltas:
        timer, tally = self.metrics.request(request.tenant), visit.tally
        step = Step(
            self.explainer,
            request,
            visit.body,
            visit.compare,
            called=f"{visit.told_by}-{prompt}" if visit.told_by else "",
        )
        tally.steps[prompt] = step
        began, generated = time(), 0
        unfinished = request.n
        reason = "abort"  # unless we learn better, the client has gone
        try:
            async with aclosing(self.frontend.generate(request)) as deltas:
                async for delta in deltas:
                    tally.take(prompt, delta.index, delta.usage)
                    if delta.finish in ("error", "abort"):
                        raise AnswerError(delta.error or "it was aborted by the server.")
                    if await step.take(delta, self.text_work):
                        self.metrics.explained(step.explanation, self.explainer.seconds)
                    timer.take(delta)
                    generated += len(delta.tokens)
                    if delta.finish is not None:
                        unfinished -= 1
                    yield prompt, delta
            if unfinished:
                raise AnswerError("the engine went silent.")
        except (InvalidRequestError, OverloadedError):
            reason = "refused"
            raise
        except DeadlineError:
            reason = "deadline"
            raise
        except Exception as error:
            reason = "error"
            log.error("request %s failed: %s", request.id, error)
            raise
        finally:
            timer.end(unfinished, reason)
            step.end(refused=reason == "refused", failed=reason == "error")
            # An answer may have ended without a token of its own, and its prompt is cached no less.
            if generated or not unfinished:
                self.recorder.note(request, began, generated)


def _empty(request: TextRequest) -> Iterator[TextDelta]:
    """The ends of answers that have not begun in time."""
    marked = request.keeping is not None and request.keeping.marks
    kept = Kept("refused", 0) if marked else None
    for index in range(request.n):
        usage = Usage(count(request.prompt), 0, 0, kept=None if index else kept)
        yield TextDelta(index=index, finish="length", stop="deadline", usage=usage)


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``. Raises ClientDisconnect, and ends it, when the client goes away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        await cancelled(task, gone)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """End ``tasks`` and wait until they have."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
