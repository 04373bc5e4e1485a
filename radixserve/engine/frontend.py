"""The seam between an engine and whoever speaks text: the HTTP server, a terminal, a test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from radixserve.cache.ghosts import Eviction
from radixserve.cache.purge import Purge
from radixserve.cache.terms import Keeping
from radixserve.cache.view import TreeView
from radixserve.engine.messages import CacheMode, EngineStats, FinishReason, Look, Looked, Usage
from radixserve.scheduling.grammar import Grammar
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tenant import OPEN, Terms
from radixserve.text.tokenizer import Tokenizer


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What clients may know about the served model."""

    name: str
    max_model_len: int
    capacity: int | None = None
    """Tokens that all KV pages hold; None: at least ``max_model_len``."""
    vocab_size: int
    created: int
    """Unix time at which it was loaded, in seconds."""
    page_size: int = 0
    """Tokens a block: what is reused in place is whole blocks."""
    prefix_cache: bool = True
    kv_cache_dtype: str = "auto"
    embedding_size: int | None = None
    """Numbers of the vector that a prompt is pooled to; None where there can be none."""
    defaults: dict[str, float | int] = {}
    """Sampling defaults of the model's generation_config.json (temperature, top_p, ...)."""
    eos_token_ids: frozenset[int] = frozenset()
    """Tokens that end an answer."""

    @property
    def longest(self) -> int:
        """Tokens of the longest request that can ever run."""
        held = self.max_model_len if self.capacity is None else self.capacity
        return min(self.max_model_len, held)


class Beams(msgspec.Struct, frozen=True, kw_only=True):
    """How a beam search goes; the names and meanings are those of transformers."""

    width: int
    """Beams that are gone on with at once."""
    length_penalty: float = 1.0
    """The sum of an answer's logprobs is divided by its length to this power: above 0 long answers
    are preferred."""
    early_stopping: bool | Literal["never"] = False
    """True: it ends with the first ``width`` answers; False: where better ones are unlikely, never:
    where there can be none."""


class TextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt in tokens, and how its answer is to be sampled and cut."""

    id: str
    prompt: bytes
    """int32 big-endian token ids."""
    sampling: SamplingParams
    n: int = 1
    """Answers to generate; the prompt is computed once."""
    beams: Beams | None = None
    """The answers are the best that a beam search finds, all told at its end; of ``sampling`` it
    looks at ``max_tokens``, what ends an answer, and ``logprobs``."""
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    markers: tuple[str, ...] = ()
    """Texts whose special tokens are shown even so: whoever reads the answer needs them."""
    end_logprob: bool = False
    """A stop token that ends the answer has its logprob too, behind those of ``TextDelta.tokens``,
    although it is not shown."""
    continuation: bool = False
    """The answer is put behind the prompt's text: a space that it begins with is meant."""
    namespace: bytes = b""
    tenant: str = OPEN
    """Whose pages and work it counts as."""
    priority: int = 0
    cache: CacheMode = "on"
    timeout: float | None = None
    """Seconds after which the answers end with what there is of them."""
    keeping: Keeping | None = None
    """What of the prompt, and of the first answer, is to be kept for a time."""


class Alternative(msgspec.Struct, frozen=True):
    """A token that could have been chosen."""

    token: str
    bytes: bytes
    logprob: float
    id: int = -1


class TokenLogprob(msgspec.Struct, frozen=True):
    """A chosen token, or one of the prompt, and its likeliest rivals, best first."""

    token: str
    bytes: bytes
    logprob: float
    top: tuple[Alternative, ...] = ()
    id: int = -1
    rank: int | None = None
    """Of one of the prompt: 1 for the likeliest."""


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """News of one answer; the last one of an answer has ``finish`` set."""

    index: int = 0
    text: str = ""
    """Text that is final: no half character, no possible beginning of a stop string."""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """One per entry of ``tokens`` when the sampling parameters ask for logprobs."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Of the next tokens of the prompt, when they ask for those; they come with the first answer,
    and before its tokens."""
    finish: FinishReason | None = None
    end: int | None = None
    """The stop token that ended the answer, where ``tokens`` lacks it."""
    stop: int | str | None = None
    """The stop token or stop string of the request that ended the answer, or ``deadline``."""
    usage: Usage
    error: str | None = None
    waited: float | None = None
    """Seconds that its prompt was in the queue; only in the first news of the first answer."""
    missed: Eviction | None = None
    """What became of the first block of the prompt that was not in the cache, if it was evicted;
    only there too."""
    vector: bytes | None = None
    """What the prompt was pooled to, where the sampling parameters ask for that: fp32
    little-endian, not normalised."""


class Frontend(Protocol):
    """What the server needs of an engine."""

    card: ModelCard
    tokenizer: Tokenizer

    @property
    def most(self) -> int:
        """Answers that may run and wait at once."""

    async def start(self) -> None:
        """Load the model and start the step loop; returns when requests can be served."""

    async def stop(self) -> None:
        """End the step loop and give everything back."""

    def generate(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        """Queue ``request`` and yield news of its answers as they come.

        Closing the iterator (or cancelling the task that reads it) aborts the request; its
        pages come back within two steps.

        Raises:
            ContextLengthError: at the first ``anext``: the prompt can never fit.
            InvalidRequestError: at the first ``anext``: a token id that the model does not have.
            OverloadedError: at the first ``anext``: the queue is full.
            DeadlineError: at the first ``anext``: the time ran out before there was a token.
            EngineDeadError: the step loop has ended.
        """

    async def grammar_fault(self, grammar: Grammar) -> str | None:
        """Why no answer can have this form, without a full stop; None if answers can.

        Whatever ``grammar`` is, neither the engine nor the event loop waits for that.
        """

    def set_tenants(self, terms: Mapping[str, Terms]) -> None:
        """The terms of tenants from now on, also of an engine that is started later, or again."""

    def set_public(self, prefixes: Sequence[bytes]) -> None:
        """All tenants share these prefixes (int32 big-endian, floored to whole blocks) from now on,
        and no others; also of an engine that is started again. What is public no more is found by
        nobody; running requests keep what they hold."""

    async def reset_prefix_cache(self, tenants: Collection[str] | None = None) -> Purge:
        """Forget every cached prefix, or all of some tenants; running requests keep what they hold.

        Once the step loop has ended nothing is cached, and nothing has to be forgotten.
        """

    async def purge(self, namespace: bytes) -> Purge:
        """The same of requests of this namespace."""

    async def survey(self, limit: int, tenant: str | None = None) -> TreeView:
        """At most ``limit`` nodes of the cache's tree, of all tenants or of one.

        Raises:
            EngineDeadError: the step loop has ended.
        """

    async def look(self, command: Look) -> Looked:
        """What is cached of a prompt; nothing of it is touched.

        Raises:
            EngineDeadError: the step loop has ended.
        """

    async def end_session(self, tenant: str, namespace: bytes, session: str) -> int | None:
        """Nobody goes on with a conversation: what it alone has cached goes before all else of its
        tenant. Returns how many pages that are, none once the step loop has ended, and with it all
        that was cached; None: there is no such conversation."""

    async def emptied(self, known: int) -> int:
        """How often all that was cached was lost to a fault, with the engine's process or without
        it, once that is more often than ``known`` and the engine serves again."""

    def healthy(self) -> bool:
        """Whether the step loop is alive."""

    def retry_after(self) -> float:
        """Seconds in which as many answers have lately ended as are under way now."""

    def stats(self) -> EngineStats:
        """Gauges and totals as of the last step."""
