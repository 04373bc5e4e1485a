"""How much work runs and waits: what is cached costs nothing, and is not counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from radixserve.cache.node import common_head
from radixserve.scheduling.inflight import Block, InFlight
from radixserve.scheduling.request import Request
from radixserve.scheduling.scheduler import Scheduler
from radixserve.tokens import TOKEN_BYTES

LOOKS = 64
"""Requests that are looked up for this alone; what is cached of the others that were not looked up
yet is taken to be the same share of them."""


def pending_tokens(scheduler: Scheduler) -> int:
    """Known tokens that are still to be computed before every request has its first one.

    Prompts that begin alike are computed once, and so are those of the answers to one prompt: what
    they share counts once. It is an estimate: something may be evicted, or cached, before they run.

    O(running + waiting requests), and ``LOOKS`` looks into the tree.
    """
    prefills = [each for each in scheduler.running.by_rank() if each.remaining > 1]
    first: dict[Block, Request] = dict(_next_blocks(scheduler.in_flight, prefills))
    pending = sum(each.remaining for each in prefills)
    looked = uncached = left = 0
    looks = LOOKS
    for request in scheduler.waiting:
        if request.sibling is not None and not request.preemptions:
            continue
        settled = scheduler.in_flight.settled(request) or request.behind
        if settled is None and request.reuse:
            if not looks:
                left += request.known
                continue
            looks -= 1
        looked += request.known
        uncached += _uncached(scheduler, request, first)
    if left:
        uncached += left * uncached // looked
    return pending + uncached


def _uncached(scheduler: Scheduler, request: Request, first: dict[Block, Request]) -> int:
    """What ``request`` adds to those in ``first``, each the first with its next block."""
    if not request.reuse:
        return request.known
    leader, tokens = None, 0
    if request.behind is not None:
        leader, tokens = request.behind
    else:
        match = scheduler.in_flight.settled(request)
        match = match or scheduler.cache.peek(request.tokens, request.namespace)
        tokens = match.tokens
        if (block := scheduler.in_flight.block(request, match.blocks)) is not None:
            leader = first.setdefault(block, request)
    if leader is not None and leader is not request:
        common = common_head(leader.tokens, request.tokens, 0, len(request.tokens))
        tokens = max(tokens, common // TOKEN_BYTES)
    # The last token is always computed.
    return request.known - min(tokens, request.known - 1)


def _next_blocks(
    in_flight: InFlight, prefills: Iterable[Request]
) -> Iterator[tuple[Block, Request]]:
    for request in prefills:
        lease = request.lease
        if lease is not None and not lease.private:
            block = in_flight.block(request, lease.published)
            if block is not None:
                yield block, request
