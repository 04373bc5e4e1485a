"""The answers under way: from news of an engine that is somewhere else to streams of text."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from radixserve.cache.purge import Purge
from radixserve.cache.view import TreeView
from radixserve.config import EngineConfig
from radixserve.engine.answer import Answer, knowing, not_begun
from radixserve.engine.beam_answers import beam_answers
from radixserve.engine.frontend import ModelCard, TextDelta, TextRequest
from radixserve.engine.messages import (
    Abort,
    Add,
    Answered,
    Command,
    Dropped,
    EndSession,
    EngineStats,
    Forget,
    GenerationDelta,
    Look,
    Looked,
    Lost,
    Ready,
    Refusal,
    Reply,
    Reset,
    SessionEnded,
    SetPublic,
    SetTenants,
    StepNews,
    Survey,
    Surveyed,
)
from radixserve.engine.process.grammar_trials import GrammarTrials
from radixserve.errors import EngineDeadError, InvalidRequestError, OverloadedError
from radixserve.scheduling.grammar import Grammar
from radixserve.tenant import Terms
from radixserve.text.tokenizer import Tokenizer

T = TypeVar("T")

LATELY = 64
"""Answers whose ends tell how fast the queue drains."""
LAST_WORD = 1.0
"""Seconds that the engine has, once a request's time is over, to say what is kept of it."""


class Deadline:
    """Put into an inbox when its request's time is over."""


Inbox = asyncio.Queue[GenerationDelta | Exception | Deadline]


class Streams:
    """Belongs to one event loop.

    Args:
        tokenizer: turns tokens to text.
        most: answers that may be under way at once; the engine's queue would refuse more, but only
            when its step has ended.
        send: gives a command to the engine, without waiting; raises EngineDeadError if there is
            none that could take it.
    """

    def __init__(self, tokenizer: Tokenizer, most: int, send: Callable[[Command], None]):
        self._tokenizer = tokenizer
        self.most = most
        self.send = send
        self._inboxes: dict[str, Inbox] = {}
        self._asked: deque[asyncio.Future[Any]] = deque()
        """Those whose commands are answered, in order."""
        self._ended: deque[float] = deque(maxlen=LATELY)

    async def generate(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        """See ``Frontend.generate``."""
        answers = {
            answer.id: answer
            for answer in (Answer(index, request, self._tokenizer) for index in range(request.n))
        }
        asked = time.monotonic()
        with self.seats(list(answers), request.timeout) as inbox:
            deadline = None if request.timeout is None else asked + request.timeout
            sequences = [answer.sequence(deadline) for answer in answers.values()]
            self.send(Add(sequences, asked))
            held: dict[str, TextDelta] = {}
            """The ends of answers that the engine has yet to say of what is kept of them."""
            late = False
            while answers or held:
                news = await inbox.get()
                if isinstance(news, Exception) or (isinstance(news, Deadline) and late):
                    for delta in held.values():
                        yield delta
                    if isinstance(news, Exception) and answers:
                        raise news
                    return
                if isinstance(news, Deadline):
                    late, running = True, True
                    told = _cut(answers, request)
                elif news.id in answers:
                    running = news.finish is None
                    told = [(answers[news.id], answers[news.id].take(news))]
                else:
                    if news.id in held and news.finish is not None:
                        self._forget(news.id, running=False)
                        yield knowing(held.pop(news.id), news)
                    continue
                for answer, delta in told:
                    if answer.finished:
                        self._ended.append(time.monotonic())
                        del answers[answer.id]
                        if running and answer.keeps:
                            self._abort(answer.id)
                            held[answer.id] = delta
                            continue
                        self._forget(answer.id, running=running)
                    yield delta

    @contextlib.contextmanager
    def seats(self, identities: Sequence[str], timeout: float | None) -> Iterator[Inbox]:
        """Where news of these sequences come, which count as under way until it is left; then they
        are aborted, if they have not ended. After ``timeout`` seconds a ``Deadline`` comes, and one
        more ``LAST_WORD`` later.

        Raises:
            InvalidRequestError: there are more than can ever be under way.
            OverloadedError: there are more than can be now.
        """
        if len(identities) > self.most:
            raise InvalidRequestError(
                f"n must be at most {self.most}: so many answers can run and wait here.",
                param="n",
            )
        if len(self._inboxes) + len(identities) > self.most:
            raise OverloadedError(
                f"{len(self._inboxes)} answers are under way; try again later.",
                retry_after=self.retry_after(),
            )
        inbox: Inbox = asyncio.Queue()
        for identity in identities:
            self._inboxes[identity] = inbox
        alarms = _alarms(inbox, timeout)
        try:
            yield inbox
        finally:
            for alarm in alarms:
                alarm.cancel()
            for identity in identities:
                self._forget(identity, running=True)

    async def ends(self, inbox: Inbox, identities: Sequence[str]) -> list[GenerationDelta] | None:
        """What was told last of each of these, once all have ended; None if their time is over.

        Raises:
            RadixServeError: one was refused, or the engine has failed.
        """
        ended: dict[str, GenerationDelta] = {}
        while len(ended) < len(identities):
            news = await inbox.get()
            if isinstance(news, Exception):
                raise news
            if isinstance(news, Deadline):
                return None
            if news.finish is not None:
                ended[news.id] = news
        return [ended[identity] for identity in identities]

    async def ask(self, command: Answered) -> Any:
        """What the engine answers to ``command``."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send(command)
        self._asked.append(done)
        return await done

    def retry_after(self) -> float:
        """See ``Frontend.retry_after``."""
        if len(self._ended) < 2:
            return 1.0
        return len(self._inboxes) * (self._ended[-1] - self._ended[0]) / (len(self._ended) - 1)

    def take(self, news: StepNews | Refusal | Lost | Reply) -> None:
        """Hand news of the engine to those whom they concern."""
        match news:
            case StepNews():
                for delta in news.deltas:
                    if (inbox := self._inboxes.get(delta.id)) is not None:
                        inbox.put_nowait(delta)
            case Refusal():
                if (inbox := self._inboxes.get(news.id)) is not None:
                    error = news.fault.error()
                    if isinstance(error, OverloadedError):
                        error.retry_after = self.retry_after()
                    inbox.put_nowait(error)
            case Lost():
                # Whoever asked a moment ago is told so too, and what it asked for is aborted.
                for inbox in set(self._inboxes.values()):
                    inbox.put_nowait(news.fault.error())
            case Dropped():
                self._answer(news.purge)
            case Looked():
                self._answer(news)
            case Surveyed():
                self._answer(news.tree)
            case SessionEnded():
                self._answer(news.pages)

    def fail(self, error: Exception) -> None:
        """End all that is under way with ``error``."""
        inboxes, self._inboxes = self._inboxes, {}
        for inbox in set(inboxes.values()):
            inbox.put_nowait(error)
        while self._asked:
            done = self._asked.popleft()
            if not done.done():
                done.set_exception(error)

    def _answer(self, result: object) -> None:
        done = self._asked.popleft()
        if not done.done():
            done.set_result(result)

    def _forget(self, identity: str, *, running: bool) -> None:
        if self._inboxes.pop(identity, None) is None:
            return
        if running:
            self._abort(identity)

    def _abort(self, identity: str) -> None:
        with contextlib.suppress(EngineDeadError):
            self.send(Abort(identity))


class Asking:
    """The half of a ``Frontend`` that asks, whatever the engine runs on."""

    config: EngineConfig
    card: ModelCard
    tokenizer: Tokenizer
    _streams: Streams
    _stats: EngineStats | None = None
    _terms: Mapping[str, Terms] | None = None
    _public: Sequence[bytes] = ()
    _trials: GrammarTrials | None = None
    _losses = 0
    """Times that all that was cached was lost."""
    _loss: asyncio.Event | None = None
    """Set with the next one, where somebody waits for it."""

    @property
    def most(self) -> int:
        return self._streams.most

    def stats(self) -> EngineStats:
        if self._stats is None:
            raise EngineDeadError("The engine has not been started.")
        return self._stats

    def _introduce(self, name: str, ready: Ready, restarts: int = 0) -> None:
        """What an engine says of itself when it begins, on the model ``name``."""
        first = self._stats is None
        self._stats = replace(ready.stats, restarts=restarts)
        self.card = ModelCard(
            name=self.config.served_model_name or name,
            max_model_len=ready.max_model_len,
            capacity=ready.stats.pages_total * self.config.page_size,
            vocab_size=ready.vocab_size,
            embedding_size=ready.embedding_size,
            created=int(time.time()) if first else self.card.created,
            page_size=self.config.page_size,
            prefix_cache=self.config.prefix_cache,
            kv_cache_dtype=self.config.kv_cache_dtype,
            defaults=ready.defaults,
            eos_token_ids=ready.eos_token_ids,
        )
        if first:
            self._streams = Streams(self.tokenizer, ready.most, self._command)

    def _command(self, command: Command) -> None:
        """Give the engine ``command``, without waiting.

        Raises:
            EngineDeadError: there is none that could take it.
        """
        raise NotImplementedError

    def _learn(self, stats: EngineStats) -> None:
        """What is left out of ``stats`` is as it was."""
        before = self._stats
        if stats.pending_tokens is None and before is not None:
            stats = replace(
                stats,
                tenants=before.tenants,
                keeps=before.keeps,
                pending_tokens=before.pending_tokens,
            )
        self._stats = stats

    async def emptied(self, known: int) -> int:
        while self._losses <= known:
            if self._loss is None:
                self._loss = asyncio.Event()
            await self._loss.wait()
        return self._losses

    def _lost(self) -> None:
        """All that was cached is, and the engine serves."""
        self._losses += 1
        if self._loss is not None:
            self._loss.set()
            self._loss = None

    def generate(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        if request.beams is not None:
            return beam_answers(self._streams, request, self.tokenizer, self.card)
        return self._streams.generate(request)

    async def grammar_fault(self, grammar: Grammar) -> str | None:
        if self._trials is None:
            self._trials = GrammarTrials(self.tokenizer.table())
        return await self._trials.fault(grammar)

    async def _end_trials(self) -> None:
        if self._trials is not None:
            await self._trials.close()

    def set_tenants(self, terms: Mapping[str, Terms]) -> None:
        self._terms = terms
        self._tell(SetTenants(dict(terms)))

    def set_public(self, prefixes: Sequence[bytes]) -> None:
        self._public = prefixes
        self._tell(SetPublic(list(prefixes)))

    def _tell(self, command: Command) -> None:
        """Give the engine ``command``; one that starts later is given its ``_standing`` then."""
        if self._stats is not None:
            with contextlib.suppress(EngineDeadError):
                self._streams.send(command)

    def _standing(self) -> Iterator[Command]:
        """What every engine that starts is to be told."""
        if self._terms is not None:
            yield SetTenants(dict(self._terms))
        if self._public:
            yield SetPublic(list(self._public))

    async def reset_prefix_cache(self, tenants: Collection[str] | None = None) -> Purge:
        command = Reset(None if tenants is None else list(tenants))
        return await self._lost_anyway(command, Purge(0, 0))

    async def end_session(self, tenant: str, namespace: bytes, session: str) -> int | None:
        return await self._lost_anyway(EndSession(tenant, namespace, session), 0)

    async def purge(self, namespace: bytes) -> Purge:
        return await self._lost_anyway(Forget(namespace), Purge(0, 0))

    async def _lost_anyway(self, command: Answered, nothing: T) -> T:
        """What the engine answers to ``command``, which forgets something that is cached: it does
        ``nothing`` where that is lost with the engine."""
        with contextlib.suppress(EngineDeadError):
            nothing = await self._streams.ask(command)
        return nothing

    async def survey(self, limit: int, tenant: str | None = None) -> TreeView:
        tree: TreeView = await self._streams.ask(Survey(limit, tenant))
        return tree

    async def look(self, command: Look) -> Looked:
        looked: Looked = await self._streams.ask(command)
        return looked

    def retry_after(self) -> float:
        return self._streams.retry_after()


def _alarms(inbox: Inbox, timeout: float | None) -> list[asyncio.TimerHandle]:
    times = () if timeout is None else (timeout, timeout + LAST_WORD)
    later = asyncio.get_running_loop().call_later
    return [later(each, inbox.put_nowait, Deadline()) for each in times]


def _cut(answers: dict[str, Answer], request: TextRequest) -> list[tuple[Answer, TextDelta]]:
    """Answers whose time is over, each with its end.

    Raises:
        DeadlineError: there is not a single token to end with.
    """
    if len(answers) == request.n and not any(answer.begun for answer in answers.values()):
        raise not_begun(request)
    return [(answer, answer.cut()) for answer in answers.values()]
