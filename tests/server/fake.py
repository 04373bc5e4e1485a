"""An engine that says what it is told to, and its tokenizers."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.testclient import TestClient

from radixserve.cache.purge import Purge
from radixserve.cache.view import NodeView, TreeView
from radixserve.engine.frontend import Alternative, ModelCard, TextDelta, TextRequest, TokenLogprob
from radixserve.engine.messages import EngineStats, Look, Looked, Usage
from radixserve.errors import InvalidRequestError
from radixserve.scheduling.grammar import Grammar
from radixserve.server.app import create_app
from radixserve.server.service import Settings
from radixserve.tenant import Terms
from radixserve.text.seams import Seams
from radixserve.text.stop_strings import StopStrings
from radixserve.tokens import pack, unpack

THOUGHT = "<think>\nOne.\n\nTwo.\n</think>\n\nHello!"

MODEL = "fake/model"
WAITED = 0.25
"""Seconds that every prompt was in the queue."""
ANSWER = "Hello!"


class FakeTokenizer:
    """One token a byte."""

    vocab_size = 256
    chat_template_source = ""
    takes_tools = False
    special_tokens: Mapping[str, int] = {}
    seams = Seams()
    adds_tokens = False

    def __init__(self) -> None:
        self.encoded = 0
        """Texts that were tokenized."""
        self.threads: set[int] = set()
        """Where that was."""

    def encode(self, text: str, *, add_special_tokens: bool = True, param: str = "prompt") -> bytes:
        self.encoded += 1
        self.threads.add(threading.get_ident())
        return pack(list(text.encode()))

    def places(self, text: str, ends: Sequence[int], *, add_special_tokens: bool) -> list[int]:
        return [len(text[:end].encode()) for end in ends]

    def token_text(self, token_id: int) -> str:
        return chr(token_id)

    def detokenizer(self) -> FakeTokenizer:
        return self

    def push(self, token_id: int) -> str:
        return chr(token_id)

    def fewest_tokens(self, text: str) -> int:
        return len(text.encode())

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(tokens).decode("utf-8", "replace")

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        if add_generation_prompt and continue_final_message:
            raise InvalidRequestError("Not both.", param="continue_final_message")
        lines = [f"{message['role']}: {message.get('content')}" for message in messages]
        if template_kwargs:
            lines.insert(0, str(template_kwargs))
        return "\n".join(lines) + ("\nassistant:" if add_generation_prompt else "")


class FakeFrontend:
    """Answers every prompt with ``answer``, a token a character, ``index`` behind it if n > 1."""

    def __init__(self, answer: str = ANSWER, *, max_model_len: int = 200):
        self.card = ModelCard(
            name=MODEL,
            max_model_len=max_model_len,
            vocab_size=256,
            created=1_700_000_000,
            embedding_size=4,
        )
        self.tokenizer = FakeTokenizer()
        self.answer = answer
        self.requests: list[TextRequest] = []
        self.threads: set[int] = set()
        """Where ``generate`` was called: the event loop's."""
        self.grammars: list[Grammar] = []
        """Those that were tried."""
        self.fault: str | None = None
        """What is said of them."""
        self.faults: dict[str, str] = {}
        """The same by kind."""
        self.refuse: Exception | None = None
        self.fail_after: int | None = None
        self.die_after: int | None = None
        self.pace = 0.0
        """Seconds before each token."""
        self.logprob = -0.5
        self.logprobs: list[float] = []
        """In place of that, of each answer by its index."""
        self.end: int | None = None
        """The stop token that ends each answer."""
        self.shared_pages: int | None = None
        """By the beams of a search."""
        self.alive = True
        self.most = 1024
        self.waiting = 0
        self.asked = threading.Semaphore(0)
        """Released once for each request that has come."""
        self.aborted = threading.Semaphore(0)
        """Released once for each request that was aborted."""
        self.terms: dict[str, Terms] = {}
        self.resets = 0
        """How often somebody's cache was to be forgotten."""
        self.purged: list[str | None] = []
        """The tenants whose caches were to be forgotten; None is everybody's."""
        self.forgotten: list[bytes] = []
        """The namespaces that were."""
        self.nodes: list[NodeView] = []
        """Of the cache's tree."""
        self.ended: list[tuple[str, bytes, str]] = []
        """The sessions that were, each with its tenant and namespace."""
        self._hold_after: int | None = None
        self._gate: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen: set[tuple[bytes, bytes]] = set()

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self.alive = False

    def healthy(self) -> bool:
        return self.alive

    def retry_after(self) -> float:
        return 7.0

    def set_tenants(self, terms: Mapping[str, Terms]) -> None:
        self.terms = dict(terms)

    def set_public(self, prefixes: Sequence[bytes]) -> None:
        self.public = list(prefixes)

    async def grammar_fault(self, grammar: Grammar) -> str | None:
        self.grammars.append(grammar)
        return self.faults.get(grammar.kind, self.fault)

    async def reset_prefix_cache(self, tenants: Collection[str] | None = None) -> Purge:
        self.resets += 1
        self.purged += [None] if tenants is None else sorted(tenants)
        self._seen.clear()
        return Purge(dropped=12, held=3)

    async def end_session(self, tenant: str, namespace: bytes, session: str) -> int | None:
        self.ended.append((tenant, namespace, session))
        return 5 if session == "known" else None

    async def emptied(self, known: int) -> int:
        await asyncio.Event().wait()  # it never is
        return known

    async def purge(self, namespace: bytes) -> Purge:
        self.forgotten.append(namespace)
        return Purge(dropped=4, held=1)

    async def survey(self, limit: int, tenant: str | None = None) -> TreeView:
        if self.refuse is not None:
            raise self.refuse
        nodes = [each for each in self.nodes if tenant is None or each.tenant == tenant]
        total = len(self.nodes) if tenant is None else None
        return TreeView(nodes=nodes[:limit], total=total)

    async def look(self, command: Look) -> Looked:
        """Nothing is found but what was asked before as a whole."""
        hit = (command.namespace, command.tokens) in self._seen
        return Looked(len(command.tokens) // 4 - 1 if hit else 0, 0)

    def hold(self, after: int = 0) -> None:
        """From now on every answer waits for ``release`` after so many tokens."""
        self._hold_after = after
        self._gate = asyncio.Event()

    def release(self) -> None:
        """Let the answers go on; may be called from any thread."""
        assert self._loop is not None
        assert self._gate is not None
        self._loop.call_soon_threadsafe(self._gate.set)

    async def generate(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        self._loop = asyncio.get_running_loop()
        self.threads.add(threading.get_ident())
        self.requests.append(request)
        self.asked.release()
        finished = 0
        try:
            if self.refuse is not None:
                raise self.refuse
            StopStrings(request.stop)
            cached = self._cached(request)
            if request.sampling.pooling is not None:
                yield self._vector(request, cached)
                finished = 1
                return
            for index in range(request.n):
                # What an answer that forks off the first one reused is no news.
                async for delta in self._answer(request, index, cached if index == 0 else 1):
                    yield delta
                finished += 1
        finally:
            if finished < request.n:
                self.aborted.release()

    async def _answer(
        self, request: TextRequest, index: int, cached: int
    ) -> AsyncGenerator[TextDelta, None]:
        text = self.answer + (str(index) if request.n > 1 else "")
        limit = request.sampling.max_tokens
        shown = text[:limit]
        prompt, start = unpack(request.prompt), request.sampling.prompt_logprobs_start
        if request.sampling.prompt_logprobs is not None and index == 0:
            # In two pieces, and before any token.
            scored = tuple(map(self._scored, prompt[start:]))
            usage = Usage(len(prompt), 0, 0)
            for piece in (scored[:3], scored[3:]):
                yield TextDelta(index=index, prompt_logprobs=piece, usage=usage)
        if not shown:
            yield TextDelta(index=index, finish="length", usage=Usage(len(prompt), 0, cached))
        for position, letter in enumerate(shown):
            if position == self._hold_after:
                assert self._gate is not None
                await self._gate.wait()
            if self.pace:
                await asyncio.sleep(self.pace)
            if position == self.die_after:
                raise RuntimeError("secret detail")
            shared = None if index else self.shared_pages
            count = len(prompt)
            usage = Usage(count, position + 1, cached, 0, count - cached, shared_pages=shared)
            if position == self.fail_after:
                yield TextDelta(index=index, finish="error", usage=usage, error="It broke.")
                return
            last = position == len(shown) - 1
            wanted = request.sampling.logprobs is not None
            yield TextDelta(
                index=index,
                text=letter,
                tokens=(ord(letter),),
                logprobs=(self._logprob(letter, index),) if wanted else (),
                finish=None if not last else "stop" if len(shown) == len(text) else "length",
                end=self.end if last and len(shown) == len(text) else None,
                usage=usage,
                waited=WAITED if index == position == 0 else None,
            )

    def _vector(self, request: TextRequest, cached: int) -> TextDelta:
        """Four numbers: the first token, the last one, how many there are, and zero."""
        prompt = request.prompt
        numbers = (prompt[3], prompt[-1], len(prompt) // 4, 0)
        usage = Usage(len(prompt) // 4, 0, cached)
        return TextDelta(vector=struct.pack("<4f", *numbers), finish="length", usage=usage)

    def _logprob(self, letter: str, index: int) -> TokenLogprob:
        data = letter.encode()
        logprob = self.logprobs[index] if self.logprobs else self.logprob
        rival = Alternative("?", b"?", float("-inf"), ord("?"))
        return TokenLogprob(letter, data, logprob, (rival,), ord(letter))

    def _scored(self, token: int) -> TokenLogprob:
        rival = Alternative("?", b"?", -0.25, ord("?"))
        return TokenLogprob(chr(token), bytes([token]), -1.5, (rival,), token, 7)

    def _cached(self, request: TextRequest) -> int:
        key = (request.namespace, request.prompt)
        hit = key in self._seen
        self._seen.add(key)
        return len(request.prompt) // 4 - 1 if hit else 0

    def stats(self) -> EngineStats:
        return EngineStats(
            steps=7,
            running=1,
            waiting=self.waiting,
            pages_total=100,
            pages_free=50,
            pages_evictable=25,
            prompt_tokens=1000,
            cached_tokens=800,
            computed_tokens=300,
            generated_tokens=90,
            preemptions=2,
            evicted_pages=5,
            radix_nodes=11,
            finished={"stop": 3},
            pending_tokens=24,
        )


@contextmanager
def saying(
    text: str, tools: str = "hermes", style: str = "none", *, takes_tools: bool = True
) -> Iterator[tuple[TestClient, FakeFrontend]]:
    """A server of a model that says ``text``."""
    frontend = FakeFrontend(text, max_model_len=5000)
    frontend.tokenizer.takes_tools = takes_tools
    settings = Settings(tool_call_parser=tools, reasoning_parser=style)
    app = create_app(frontend, settings=settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client, frontend


class OpeningTokenizer(FakeTokenizer):
    """Its template begins the reasoning, unless it is told not to."""

    chat_template_source = "{% if enable_thinking %}<think></think>{% endif %}{{reasoning_effort}}"

    def render_chat(self, messages: list[dict[str, Any]], **settings: Any) -> str:
        given = settings.get("template_kwargs") or {}
        head = super().render_chat(messages, **settings)
        if not settings["add_generation_prompt"]:
            return head
        thinks = given.get("enable_thinking", True)
        return head + ("<think>\n" if thinks else "<think>\n\n</think>\n\n")
