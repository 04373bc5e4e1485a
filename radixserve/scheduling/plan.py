"""What one step computes: plain integers and bytes, no tensors."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import msgspec

from radixserve.cache.pages import PageCopy
from radixserve.scheduling.grammar import Matcher
from radixserve.scheduling.sampling import Pooling, SamplingParams

MAX_SCORED = 256
"""Tokens of prompts that a step scores at most: each takes the logits of a whole vocabulary."""
UNKNOWN = b"\xff\xff\xff\xff"
"""The one token of a row whose value the step before chooses, and only the device knows: -1."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A sequence of the same prompt (n > 1) whose first token comes from the same logits."""

    request_id: str
    sampling: SamplingParams


@dataclass(slots=True)
class Row:
    """One request's share of a step: ``count`` tokens from position ``start``.

    ``pages`` holds the ids of every page up to the last of these tokens, in order of position
    (and maybe more, reserved for later ones). ``sampling`` is None while tokens that are already
    known remain to be computed; otherwise the logits of the row's last token choose the next one.

    A row is to be read until its plan is committed: a request that decodes keeps its row, and moves
    it on when the token has come. Where ``tokens`` is ``UNKNOWN``, it is the token that the step
    before samples for this request; ``history`` lacks it too, until that step is committed.
    """

    request_id: str
    tokens: bytes | bytearray
    """The tokens to compute, int32 big-endian."""
    start: int
    pages: array[int]
    """int32 page ids; borrowed from the lease, not to be kept beyond the step."""
    sampling: SamplingParams | None = None
    history: bytes | bytearray = b""
    """Every token so far, prompt and output, int32 big-endian; borrowed."""
    prompt_length: int = 0
    forks: list[Fork] = field(default_factory=list)
    matcher: Matcher | None = None
    """Where the answer, and with it those of the forks, stands in its grammar; None if it has none.
    It is moved on when the plan is committed."""
    pooling: Pooling | None = None
    """Set where the end of the prompt brings a vector, not a token."""
    scores: range = range(0)
    """Positions of tokens of the prompt whose logits score the token that comes next in it."""
    rivals: int = 0
    """So many likeliest tokens are told of with each token that is scored."""

    @property
    def count(self) -> int:
        return len(self.tokens) // 4

    @property
    def context(self) -> int:
        """Tokens that are in the cache once the step has run."""
        return self.start + len(self.tokens) // 4

    @property
    def generated(self) -> int:
        """Output tokens that a row which samples follows: the index of the one it samples."""
        return self.start + len(self.tokens) // 4 - self.prompt_length


@dataclass(slots=True)
class StepPlan:
    """The rows of one step; ``copies`` run before anything is computed."""

    step: int
    rows: list[Row] = field(default_factory=list)
    copies: list[PageCopy] = field(default_factory=list)
    decoding: int = 0
    """So many rows, which come first, are known to compute one token and to sample the next."""

    @property
    def tokens(self) -> int:
        """Tokens that this step computes. O(rows that are not known to decode)."""
        return self.decoding + sum(row.count for row in self.rows[self.decoding :])


class Sampled(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The next token of a row, or why there is none; or a token of its prompt, scored."""

    token: int
    logprob: float | None = None
    """Natural logarithm of the chosen token's probability, before temperature and filters."""
    top: tuple[tuple[int, float], ...] = ()
    """(token id, logprob) of the likeliest tokens, best first."""
    error: str | None = None
    """Set when this row alone failed; its request ends with an error, the others go on."""
    vector: bytes | None = None
    """In place of a token, where that was wanted: fp32 little-endian."""
    rank: int | None = None
    """Of a token of the prompt that was scored: 1 for the likeliest one."""
