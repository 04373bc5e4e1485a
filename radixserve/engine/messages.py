"""What travels between an engine and those who ask it: token ids, never text."""

from __future__ import annotations

from typing import Literal

import msgspec

from radixserve.scheduling.plan import Sampled
from radixserve.scheduling.sampling import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate."""

    id: str
    """Unique among the live requests of the engine; made by us, never by a client."""
    tokens: bytes
    """The prompt, int32 big-endian."""
    sampling: SamplingParams
    namespace: bytes = b""
    """What may share KV with this request; see ``radixserve.cache.namespace``."""
    priority: int = 0
    """The lower number goes first (only with the priority policy)."""
    sibling: str | None = None
    """Id of the first sequence of the same prompt (n > 1), whose pages this one forks."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one sequence, final once it has finished."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens that were not computed: reused pages and copied part-blocks."""


class GenerationDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one step brought for one sequence."""

    id: str
    sampled: tuple[Sampled, ...] = ()
    finish: FinishReason | None = None
    stop_token: int | None = None
    """The stop token that ended it, which is not part of the text."""
    usage: Usage
    error: str | None = None


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
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
