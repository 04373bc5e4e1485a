"""Sharing what is still being computed: k identical cold prompts cost one prefill."""

from __future__ import annotations

from collections.abc import Iterable

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.scheduling.request import Request
from radixserve.tokens import TOKEN_BYTES


class InFlight:
    """Who, among the running requests, is about to publish which block.

    A waiting request whose next block is among them is deferred until that block is published. It
    holds nothing meanwhile. The map is made anew for each plan, so that a leader that was aborted,
    failed or preempted is simply not there any more, and its first follower takes over.
    """

    __slots__ = ("_cache", "_leaders")

    def __init__(self, cache: PrefixCache, running: Iterable[Request]):
        self._cache = cache
        self._leaders: dict[tuple[bytes, int, bytes], Request] = {}
        for request in running:
            self.lead(request)

    def lead(self, request: Request) -> None:
        """Note which block ``request`` will publish next, if all of it is known. O(block)."""
        lease = request.lease
        if lease is None or lease.private or request.remaining < 2:
            return
        block = self._block(request, lease.published)
        if block is not None:
            self._leaders.setdefault((request.namespace, lease.published, block), request)

    def leader(self, request: Request) -> Request | None:
        """The running request that is computing the next block of ``request``, if there is one.

        O(1) while the leader has not moved since we last asked, else what ``peek`` costs.
        """
        if not self._leaders or not request.reuse:
            return None
        if request.behind is not None:
            before, published = request.behind
            if before.lease is not None and before.lease.published == published:
                return None if before.lease.private else before
        request.behind = None
        matched = self._cache.peek(request.tokens, request.namespace).blocks
        block = self._block(request, matched)
        leader = self._leaders.get((request.namespace, matched, block)) if block else None
        if leader is None or not leader.tokens.startswith(request.tokens[: matched * TOKEN_BYTES]):
            return None
        request.behind = (leader, matched)
        return leader

    def _block(self, request: Request, start: int) -> bytes | None:
        """The block of known tokens that begins at ``start``, or None if it is not whole."""
        end = start + self._cache.page_size
        if end > request.known:
            return None
        return bytes(request.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])
