"""Sharing what is still being computed: k identical cold prompts cost one prefill."""

from __future__ import annotations

from collections.abc import Iterable

from radixserve.cache.peek import Peek
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.scheduling.request import Request
from radixserve.scheduling.running import RunningRequests
from radixserve.tokens import TOKEN_BYTES

NOTHING = Peek(0, 0)

Block = tuple[bytes, int, bytes]
"""Namespace, that of public prefixes where it is part of one, position and tokens of a block."""


class InFlight:
    """Who, among the running requests, is about to publish which block.

    A waiting request whose next block is among them is deferred until that block is published, also
    one of another tenant where the block is part of a public prefix. It holds nothing meanwhile.
    The map is made anew for each plan, so that a leader that was aborted, failed or preempted is
    simply not there any more, and its first follower takes over.

    Args:
        cache: where waiting requests are looked up, each at most once a plan.
        running: all that run.
    """

    __slots__ = ("_awaited", "_awaiting", "_cache", "_changed", "_leaders", "_plan", "_running")

    def __init__(self, cache: PrefixCache, running: RunningRequests):
        self._cache, self._running = cache, running
        self._plan = 0
        self._leaders: dict[Block, Request] = {}
        self._awaiting: dict[Block, dict[str, Request]] = {}
        """Waiting requests, by their first block that was not cached when they were looked up."""
        self._awaited: dict[str, Block] = {}
        """The same by request: what is public, and so the key of a block, may change meanwhile."""
        self._changed: dict[str, Request] = {}
        """Those of whose next block somebody has begun to compute."""

    def begin(self, prefills: Iterable[Request], plan: int) -> None:
        """``prefills`` are those that compute known tokens, as of ``plan``. O(prefills)."""
        self._plan = plan
        self._leaders = {}
        for request in prefills:
            self.lead(request)

    def lead(self, request: Request) -> None:
        """Note which block ``request`` will publish next, if all of it is known.

        O(block + requests that wait for it)."""
        lease = request.lease
        if lease is None or lease.private or request.remaining < 2:
            return
        block = self._block(request, lease.published, lease.scope)
        if block is not None:
            self._leaders.setdefault(block, request)
            self._changed.update(self._awaiting.pop(block, {}))

    def leader(self, request: Request) -> Request | None:
        """The running request that is computing the next block of ``request``, or the rest of the
        very prompt that it shares (n > 1), if there is one.

        O(blocks that the leader has published since we last asked), else what ``peek`` costs.
        """
        first = self._running.get(request.sibling)
        if first is not None and first.generated == 0:
            return first
        before = self._followed(request)
        if before is not None or not self._leaders or not request.shares:
            return before
        matched = self._look(request).blocks
        block = self.block(request, matched)
        leader = self._leaders.get(block) if block else None
        if leader is None or not leader.tokens.startswith(request.tokens[: matched * TOKEN_BYTES]):
            return None
        request.behind = (leader, matched)
        return leader

    def defers(self, request: Request) -> bool:
        """Whether a running request computes what ``request`` needs; it goes as far ahead. As
        ``leader``."""
        leader = self.leader(request)
        if leader is not None:
            self._running.lend(leader, request.priority)
        return leader is not None

    def reusable(self, request: Request) -> int:
        """Tokens of whole blocks that are cached for ``request``; it is looked up once a plan.

        O(1) the second time, else as ``leader``."""
        self.leader(request)
        if request.behind is None:
            return self._look(request).blocks
        self._changed[request.id] = request
        return request.behind[1]

    def changed(self) -> list[Request]:
        """The waiting requests for which more may be cached than when they were looked up, but for
        those that still follow a leader. They are told once. O(those and followers)."""
        told = [each for each in self._changed.values() if self._followed(each) is None]
        for request in told:
            self.forget(request)
        return told

    def forget(self, request: Request) -> None:
        """``request`` does not wait any more, or what was found for it does not hold. O(block)."""
        self._changed.pop(request.id, None)
        self._await_nothing(request)
        request.match = None

    def __len__(self) -> int:
        """Waiting requests that are watched here. O(those)."""
        awaiting = (each for requests in self._awaiting.values() for each in requests)
        return len(self._changed.keys() | awaiting)

    def uncached(self, request: Request) -> int:
        """Tokens of ``request`` that are not cached. As ``reusable``."""
        return request.known - self._look(request).tokens

    def next_block(self, request: Request) -> Block | None:
        """The first block of ``request`` that is not cached. As ``reusable``."""
        return self.block(request, self._look(request).blocks)

    def settled(self, request: Request) -> Peek | None:
        """What was cached for it when it was looked up, unless more may be by now. O(1)."""
        changing = request.behind is not None or request.id in self._changed
        return None if changing else request.match

    def leads(self, block: Block) -> bool:
        """Whether somebody is about to publish ``block``. O(1)."""
        return block in self._leaders

    def _followed(self, request: Request) -> Request | None:
        """The leader that we found last time, while it goes on with blocks of ``request``."""
        if request.behind is None:
            return None
        leader, published = request.behind
        lease = leader.lease
        if lease is not None and not lease.private and leader.remaining > 1:
            if lease.published == published:
                return leader
            at = lease.published
            since = slice(published * TOKEN_BYTES, at * TOKEN_BYTES)
            block = self.block(request, at)
            if (
                block is not None
                and block == self._block(leader, at, lease.scope)
                and leader.tokens[since] == request.tokens[since]
            ):
                request.behind = (leader, at)
                return leader
        request.behind = None
        return None

    def _look(self, request: Request) -> Peek:
        if request.match is None or request.looked != self._plan:
            self._await_nothing(request)
            found = self._cache.peek(request.tokens, request.namespace) if request.shares else None
            request.match, request.looked = found or NOTHING, self._plan
            block = self.block(request, request.match.blocks)
            if block is not None:
                self._awaiting.setdefault(block, {})[request.id] = request
                self._awaited[request.id] = block
        return request.match

    def _await_nothing(self, request: Request) -> None:
        block = self._awaited.pop(request.id, None)
        awaiting = self._awaiting.get(block) if block is not None else None
        if block is not None and awaiting is not None:
            awaiting.pop(request.id, None)
            if not awaiting:
                del self._awaiting[block]

    def block(self, request: Request, start: int) -> Block | None:
        """The block of known tokens that begins at ``start``, or None if it is not whole."""
        scope = self._cache.scope(request.tokens, request.namespace, start)
        return self._block(request, start, scope)

    def _block(self, request: Request, start: int, scope: bytes) -> Block | None:
        end = start + self._cache.page_size
        if end > request.known:
            return None
        tokens = bytes(request.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])
        return (scope, start, tokens)
