"""One sequence on its way through the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Literal

from radixserve.cache.ghosts import Eviction
from radixserve.cache.lease import Lease
from radixserve.cache.peek import Peek
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.terms import Keeping, Kept
from radixserve.scheduling.account import Account
from radixserve.scheduling.grammar import Matcher
from radixserve.scheduling.plan import Row
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import TOKEN_BYTES

MAX_PREEMPTIONS = 2
"""After the second one a request runs again only with room for all that it may ever need."""

FinishReason = Literal["stop", "length", "abort", "error"]

_PACK = Struct(">i").pack


@dataclass(slots=True, eq=False)
class Request:
    """A request has ``computed`` tokens chasing ``known`` ones; there is no other phase.

    It holds a lease exactly while it runs. ``tokens`` is the prompt and, appended to it, the
    output, as int32 big-endian.
    """

    id: str
    tokens: bytearray
    prompt_length: int
    limit: int
    """Tokens, prompt and output, at which it ends."""
    sampling: SamplingParams
    stop_tokens: frozenset[int]
    namespace: bytes
    tenant: str
    """Whose pages it counts as."""
    account: Account
    """Whose work it counts as."""
    priority: int
    """The lower number goes first; a leader takes over the lowest of those that wait for it."""
    arrival: int
    sibling: str | None = None
    """The first sequence of the same prompt (n > 1)."""
    follows: bool = False
    """Whether it goes on where one that has ended left off, and keeps its place."""
    reuse: bool = True
    """Whether cached prefixes are taken."""
    keep: bool = True
    """Whether what it computes is left in the cache."""
    deadline: float | None = None
    """Until when it is waited for, in seconds; only compared with those of others."""
    lease: Lease | None = None
    row: Row | None = None
    """Its next step, kept while it decodes; None until it samples, and again once it has left."""
    keeping: Keeping | None = None
    """What of it is kept once it has ended."""
    kept: Kept | None = None
    """What became of that."""
    cached: int | None = None
    """Prompt tokens that were reused when it first ran; None before that."""
    copied: int = 0
    """Of those, the ones that were copied from a part of a block."""
    missed: Eviction | None = None
    """What became of the first block that was not reused then, if it was evicted."""
    preemptions: int = 0
    queued: int = 0
    """The number of the plan before which it came."""
    paid: int = 0
    """Prompt tokens up to which its tenant has been charged, or reused what was cached."""
    match: Peek | None = field(default=None, repr=False)
    """What of it was cached when it was last looked up, and in which plan that was."""
    looked: int = 0
    matcher: Matcher | None = None
    """Where the output stands in its grammar; it stays so when the request is preempted."""
    behind: tuple[Request, int] | None = field(default=None, repr=False)
    """Whose prefill it waits for, and how far that had published when we last looked."""
    known: int = field(init=False)
    """Tokens so far, prompt and output."""
    scored: int = field(init=False)
    """Positions of the prompt, from the first on, whose logits are not needed, or not any more."""

    def __post_init__(self) -> None:
        self.known = self.prompt_length
        self.scored = self.prompt_length - 1
        if self.sampling.prompt_logprobs is not None and self.sibling is None:
            self.scored = min(self.scored, self.sampling.prompt_logprobs_start - 1)

    @property
    def generated(self) -> int:
        return self.known - self.prompt_length

    @property
    def written(self) -> int:
        """Prompt tokens that were computed and are left in the cache, once it has run."""
        return self.prompt_length - self.cached if self.keep and self.cached is not None else 0

    @property
    def reusable(self) -> int | None:
        """Tokens of it that may be taken from the cache; None means all. O(1)."""
        if not self.reuse:
            return 0
        return self.scored if self.scored < self.prompt_length - 1 else None

    @property
    def shares(self) -> bool:
        """Whether it may wait for what others compute, and take that. O(1)."""
        return self.reusable is None

    def unscored(self, start: int, end: int) -> range:
        """Of these positions, which are computed next, those that are still to be scored. O(1)."""
        return range(max(start, self.scored), min(end, self.prompt_length - 1))

    @property
    def resumes(self) -> bool:
        """Whether it, or what it goes on with, has run already. O(1)."""
        return self.follows or self.preemptions > 0

    @property
    def ready(self) -> bool:
        """Whether it may begin: its grammar may still be being compiled."""
        return self.matcher is None or self.matcher.ready

    @property
    def computed(self) -> int:
        return self.lease.computed if self.lease is not None else 0

    @property
    def remaining(self) -> int:
        """Known tokens whose KV is not computed; 1 is a decode step."""
        return self.known - self.computed

    @property
    def rank(self) -> tuple[int, int]:
        """Who goes first: a total order, so that no two requests are ever equals."""
        return (self.priority, self.arrival)

    def append(self, token: int) -> FinishReason | None:
        """Take a sampled token, and charge it; says whether, and why, the sequence ends: ``error``
        if its grammar refuses the token. O(1)."""
        start, packed = self.known, _PACK(token)
        self.tokens += packed
        self.known = start + 1
        self.account.generated += 1
        if token in self.stop_tokens and self.generated > self.sampling.min_tokens:
            return "stop"
        if self.matcher is not None:
            if not self.matcher.accept(token):
                return "error"
            if self.matcher.complete:
                return "stop"
        if self.known >= self.limit:
            return "length"
        row = self.row
        if row is None:
            self.row = self.next_row(start, 1)
        else:  # the same pages and settings, one token further; or that token was not known yet
            row.start = start
            row.tokens = packed
        return None

    def pay(self, start: int, end: int) -> None:
        """The tokens from ``start`` to ``end`` are computed: charge for those of the prompt.

        What is computed again after a preemption was paid for the first time: the request stepped
        back for others. O(1).
        """
        end = min(end, self.prompt_length)
        if end > self.paid:
            self.account.prefilled += end - max(start, self.paid)
            self.paid = end

    def keep_marks(self, cache: PrefixCache) -> None:
        """It ends, and keeps what it has marked; a lease that it holds is released thereby. Without
        one, since it has not begun or was preempted, there is nothing that it could keep."""
        if self.keeping is None:
            return
        if self.lease is not None:
            self.kept = cache.finish(self.lease, self.keeping, self.cached or 0)
        elif self.keeping.marks:
            cache.accounts.keeps.refuse("unfinished")
            self.kept = Kept("refused", 0)

    def next_row(self, start: int, count: int) -> Row:
        """``count`` known tokens to compute, from ``start`` on. O(count)."""
        assert self.lease is not None, "a running request holds a lease"
        end = start + count
        return Row(
            self.id,
            self.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES],
            start,
            self.lease.pages,
            self.sampling if end == self.known < self.limit else None,
            self.tokens,
            self.prompt_length,
            matcher=self.matcher,
            pooling=self.sampling.pooling,
            scores=self.unscored(start, end),
            rivals=self.sampling.prompt_logprobs or 0,
        )
