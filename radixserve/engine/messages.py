"""What travels between an engine and those who ask it: token ids, never text.

Every message is a msgspec struct, so that it can cross from one process to another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from radixserve.cache.ghosts import Eviction
from radixserve.cache.purge import Purge
from radixserve.cache.terms import KeepCounts, Keeping, Kept
from radixserve.cache.view import TreeView
from radixserve.errors import (
    ConfigError,
    ContextLengthError,
    DeadlineError,
    EngineDeadError,
    InvalidRequestError,
    LostError,
    ModelError,
    OverloadedError,
    RadixServeError,
)
from radixserve.scheduling.plan import Sampled
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tenant import OPEN, Terms

FinishReason = Literal["stop", "length", "abort", "error"]
CacheMode = Literal["on", "read-only", "off"]
"""Whether a request takes cached prefixes and leaves its own: both, takes only, neither."""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One sequence to generate."""

    id: str
    """Unique among the live requests of the engine; made by us, never by a client."""
    tokens: bytes
    """The prompt, int32 big-endian."""
    sampling: SamplingParams
    namespace: bytes = b""
    """What may share KV with this request; see ``radixserve.cache.namespace``."""
    tenant: str = OPEN
    """Whose pages and work it counts as."""
    priority: int = 0
    """The lower number goes first (only with the priority policy)."""
    sibling: str | None = None
    """Id of the first sequence of the same prompt (n > 1), whose pages this one forks."""
    follows: bool = False
    """Whether it goes on where one that has ended left off (beam search): then it keeps that one's
    place before all newcomers, and counts as no request of its own."""
    cache: CacheMode = "on"
    deadline: float | None = None
    """Until when the client waits, in seconds of the machine's monotonic clock."""
    keeping: Keeping | None = None
    """What of it is to be kept when it has ended."""


class Usage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Token counts of one sequence, final once it has finished."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens that were not computed: reused pages and copied part-blocks."""
    copied_tokens: int = 0
    """Of those, the copied ones."""
    written_tokens: int = 0
    """Prompt tokens that were computed and are left in the cache."""
    shared_pages: int | None = None
    """Of the first answer of a beam search: pages that its last step read in place more than once,
    and that so many beams apart would have needed in addition."""
    kept: Kept | None = None
    """What became of what was to be kept, once that is known."""


class GenerationDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one step brought for one sequence."""

    id: str
    sampled: tuple[Sampled, ...] = ()
    finish: FinishReason | None = None
    stop_token: int | None = None
    """The stop token that ended it, which is not part of the text."""
    usage: Usage
    error: str | None = None
    waited: float | None = None
    """Seconds that it was in the queue; only in its first news."""
    missed: Eviction | None = None
    """What became of the first block of its prompt that was not in the cache, if it was evicted;
    only in its first news."""
    scored: tuple[Sampled, ...] = ()
    """The next tokens of its prompt whose logprobs were asked for."""


class TenantStats(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Gauges and running totals of one tenant; the totals begin anew after it had neither pages nor
    terms."""

    pages_cached: int = 0
    """Pages that keep its prefixes and that no running request of it holds."""
    pages_held: int = 0
    """Pages that its running requests hold."""
    evictions_suffered: int = 0
    """Pages of it that were evicted, for itself or for others."""
    evictions_caused: int = 0
    """Pages that were evicted, its own or others', because it needed some."""
    service: int = 0
    """Work done for it: a computed prompt token is 1, a generated one 2."""
    lag: float = 0.0
    """Service by weight that it is ahead of the least served tenant that waits."""
    waiting: int = 0
    """Requests in the queue."""
    started: int = 0
    """Requests that have left the queue."""
    waited: int = 0
    """Steps that these had waited, all together."""
    pages_kept: int = 0
    """Of all its pages those that are kept for a time."""
    keep_budget: int = 0
    """Pages that it may keep at once."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Gauges and running totals of an engine, all as of the last step."""

    steps: int
    running: int
    waiting: int
    pages_total: int
    pages_free: int
    pages_evictable: int
    """Cached and not in use: free for whoever needs them."""
    prompt_tokens: int
    """Prompt tokens of all requests that were admitted; each request counted once."""
    cached_tokens: int
    """Of those, the ones that were not computed."""
    computed_tokens: int
    """Tokens that went through the model, recomputation after preemption included."""
    generated_tokens: int
    preemptions: int
    evicted_pages: int
    radix_nodes: int
    finished: dict[str, int]
    """Ended requests by finish reason."""
    pending_tokens: int | None = None
    """Known tokens that are still to be computed before every request has its first one: what is
    cached does not count. In the news of a step it is None where it was told a moment ago."""
    public_pages: int = 0
    """Pages of public prefixes, which count as nobody's."""
    tenants: dict[str, TenantStats] = {}
    """Those that have terms, pages or running requests; left out together with the pending tokens.
    A frontend always knows both."""
    keeps: KeepCounts | None = None
    """Left out with them."""
    restarts: int = 0
    """Times that the engine had to be started again; the totals above begin anew with each."""


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of what is sent; the tag, its class's name, comes first."""


class Add(Message, frozen=True):
    """Queue these sequences, or none of them."""

    sequences: list[GenerationRequest]
    asked: float
    """When that was, in seconds of the machine's monotonic clock."""


class Abort(Message, frozen=True):
    """End a sequence, if it has not ended; its last news say what came of it."""

    id: str


class Reset(Message, frozen=True):
    """Forget all prefixes, or those of some tenants; answered by ``Dropped``."""

    tenants: list[str] | None = None


class Forget(Message, frozen=True):
    """Forget the prefixes of one namespace; answered by ``Dropped``."""

    namespace: bytes


class Survey(Message, frozen=True):
    """Show at most ``limit`` nodes of the tree, of all tenants or of one; answered by
    ``Surveyed``."""

    limit: int
    tenant: str | None = None


class Look(Message, frozen=True):
    """Say what is cached of a prompt, and change nothing; answered by ``Looked``."""

    tokens: bytes
    namespace: bytes
    tenant: str
    limit: int | None = None
    """Tokens that such a request may reuse."""


class EndSession(Message, frozen=True):
    """Nobody goes on with this conversation of a tenant; answered by ``SessionEnded``."""

    tenant: str
    namespace: bytes
    session: str


class SetTenants(Message, frozen=True):
    """From now on these are the terms of tenants; whoever is not among them has the defaults."""

    terms: dict[str, Terms]


class SetPublic(Message, frozen=True):
    """From now on these prefixes (int32 big-endian) are shared by all tenants, and no others."""

    prefixes: list[bytes]


class Stop(Message, frozen=True):
    """End the engine after the step that it is in."""


class Ping(Message, frozen=True):
    """Nothing but to be answered: the engine has news after each command."""


class RankLost(Message, frozen=True):
    """What computes steps has ended: said by whoever watches it, in the engine's own process."""

    reason: str


Answered = Reset | Forget | EndSession | Survey | Look
"""What somebody waits to hear of; all are answered in order."""
Command = Add | Abort | Answered | SetTenants | SetPublic | Stop | Ping | RankLost


FAULTS: dict[str, tuple[type[RadixServeError], tuple[str, ...]]] = {
    "context": (ContextLengthError, ("prompt_tokens", "limit", "param")),
    "invalid": (InvalidRequestError, ("param", "code")),
    "overloaded": (OverloadedError, ("retry_after",)),
    "deadline": (DeadlineError, ()),
    "lost": (LostError, ()),
    "config": (ConfigError, ()),
    "model": (ModelError, ()),
    "dead": (EngineDeadError, ()),
}
"""The errors that travel, the special before the general, and what they are made with."""


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """An error of ours as it travels."""

    kind: str
    message: str
    details: dict[str, Any] = {}
    """What else the error was made with."""

    @classmethod
    def of(cls, error: Exception) -> Fault:
        """``error``; one that nobody raised on purpose is the death of the engine."""
        for kind, (sort, names) in FAULTS.items():
            if isinstance(error, sort):
                return cls(kind, str(error), {name: getattr(error, name) for name in names})
        return cls("dead", str(error) or repr(error))

    def error(self) -> RadixServeError:
        """The error again."""
        make: Callable[..., RadixServeError] = FAULTS[self.kind][0]
        words = () if make is ContextLengthError else (self.message,)
        return make(*words, **self.details)


class StepNews(Message, frozen=True):
    """What a step brought, and the engine's counts after it."""

    deltas: list[GenerationDelta]
    stats: EngineStats


class Refusal(Message, frozen=True):
    """A sequence that was not queued, and why."""

    id: str
    fault: Fault


class Lost(Message, frozen=True):
    """The engine has lost all sequences to a fault, and goes on without them."""

    fault: Fault


class Dropped(Message, frozen=True):
    """What a ``Reset`` or a ``Forget`` did."""

    purge: Purge


class Surveyed(Message, frozen=True):
    """The answer to a ``Survey``."""

    tree: TreeView


class Looked(Message, frozen=True):
    """What is cached of the prompt of a ``Look``."""

    reused: int
    """Tokens in whole blocks."""
    copied: int
    """Tokens of the next block that could be copied."""
    missed: Eviction | None = None
    """What became of the first block that is not there, if it was evicted."""


class SessionEnded(Message, frozen=True):
    """What an ``EndSession`` did: the pages that go before all others now; None: there is no such
    conversation."""

    pages: int | None


class Found(Message, frozen=True):
    """The model's files are there; it is loaded next."""

    name: str
    tokenizer: str
    """The directory of the tokenizer's files."""


class Ready(Message, frozen=True, kw_only=True):
    """The model is loaded."""

    max_model_len: int
    vocab_size: int
    embedding_size: int | None = None
    defaults: dict[str, float | int]
    eos_token_ids: frozenset[int]
    most: int
    """Sequences that may run and wait."""
    stats: EngineStats


class Failure(Message, frozen=True):
    """The engine has ended, or could not be started."""

    fault: Fault


Reply = Dropped | SessionEnded | Surveyed | Looked
"""What is heard of an ``Answered``."""
News = StepNews | Refusal | Lost | Reply | Found | Ready | Failure
