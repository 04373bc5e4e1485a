"""A trace against the cache that serves, one request after the other, without a model."""

from __future__ import annotations

from collections.abc import Sequence

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.terms import Keeping
from radixserve.simulation.paths import ID_BYTES, path
from radixserve.simulation.trace import Trace
from radixserve.tokens import TOKEN_BYTES

PAGE = ID_BYTES // TOKEN_BYTES
"""An id of a block stands for the block: it has the bytes of so many tokens."""


def serve(
    trace: Trace,
    blocks: int,
    *,
    adaptive: bool = False,
    says: Sequence[Keeping] | None = None,
) -> float:
    """The share of prompt tokens that hit, 0 to 1, in a cache of ``blocks`` pages, each of which
    holds a block. A prompt that does not fit is not served.

    Unlike ``replay`` by default, a request needs its pages while it runs, whether they are kept or
    not.

    Args:
        adaptive: whether newcomers pass by what is likely to be used soon.
        says: what the client of each request says of what it leaves.
    """
    cache = PrefixCache(blocks + 1, PAGE, adaptive=adaptive)
    hits = tokens = 0
    for place, call in enumerate(trace.calls):
        cache.time = call.time
        tokens += call.tokens
        prompt = b"".join(node.key for node in path(call.end))
        length = len(prompt) // TOKEN_BYTES
        step = cache.begin_step()
        # One token more, since of a whole prompt the last is always computed.
        lease = cache.reserve(prompt + bytes(TOKEN_BYTES), call.tenant.encode(), length)
        if lease is not None:
            found = lease.published
            hits += min(found // PAGE * trace.block_size, call.tokens - 1)
            lease.copied()
            lease.publish(length)
            cache.finish(lease, Keeping() if says is None else says[place], found)
        cache.end_step(step)
    return hits / max(tokens, 1)
