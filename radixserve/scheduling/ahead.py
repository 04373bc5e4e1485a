"""What is surely computed before a request that waits has its first token."""

from __future__ import annotations

from collections.abc import Iterable

from radixserve.scheduling.inflight import Block
from radixserve.scheduling.request import Request
from radixserve.scheduling.scheduler import Scheduler


def tokens_before(scheduler: Scheduler, request: Request) -> int:
    """A lower bound of the tokens that steps compute until ``request`` has its first token.

    What is left of running prefills, and what is not cached of ``request`` and of those that
    certainly start before it: of a better class, or of its own tenant with an earlier deadline.
    What has not been looked up yet counts as cached, and so does a part of a block, which may be
    copied from somebody who is about to end. Of those that share what they have to compute next
    only the one that has most of it is counted.

    O(running + waiting requests), and one look into the tree.
    """
    prefills = [each for each in scheduler.running.by_rank() if each.remaining > 1]
    look = scheduler.in_flight
    look.begin(prefills, scheduler.plans)
    groups: dict[Block | str, int] = {}
    if look.leader(request) is None:
        groups[look.next_block(request) or request.id] = look.uncached(request)
    for each in _earlier(scheduler.waiting, request):
        match = look.settled(each)
        if match is None:
            continue
        block = look.block(each, match.blocks)
        if block is None or not look.leads(block):
            key = block or each.id
            groups[key] = max(groups.get(key, 0), each.known - match.tokens)
    part = scheduler.cache.page_size - 1
    waiting = sum(max(0, tokens - part) for tokens in groups.values())
    return sum(each.remaining for each in prefills) + waiting


def _earlier(waiting: Iterable[Request], request: Request) -> list[Request]:
    deadline = request.deadline
    return [
        each
        for each in waiting
        if each.priority < request.priority
        or (
            each.priority == request.priority
            and each.tenant == request.tenant
            and each.deadline is not None
            and deadline is not None
            and each.deadline < deadline
        )
    ]
