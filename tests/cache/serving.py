"""Short words for what a server does with the cache."""

from __future__ import annotations

from collections.abc import Iterable

from radixserve.cache.eviction import EvictionOrder
from radixserve.cache.lease import Lease
from radixserve.cache.node import Node, walk
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.terms import Keeping, Kept, Mark
from radixserve.tenant import OPEN
from radixserve.tokens import pack, unpack


def prefill(
    cache: PrefixCache,
    tokens: Iterable[int],
    namespace: bytes = b"",
    *,
    tenant: str = OPEN,
    limit: int | None = None,
) -> Lease:
    """Acquire, compute and publish all of ``tokens``; the lease stays."""
    packed = bytearray(pack(tokens))
    lease = cache.reserve(packed, namespace, 0, tenant=tenant, limit=limit)
    assert lease is not None
    compute(lease, len(packed) // 4 - lease.computed)
    return lease


def compute(lease: Lease, count: int) -> None:
    """Compute and publish the next ``count`` tokens."""
    assert lease.extend(count)
    lease.copied()
    lease.publish(lease.computed + count)


def append(lease: Lease, *tokens: int) -> None:
    """Append generated tokens and compute them."""
    assert isinstance(lease.tokens, bytearray)
    lease.tokens.extend(pack(tokens))
    compute(lease, len(tokens))


def serve(
    cache: PrefixCache, tokens: Iterable[int], namespace: bytes = b"", *, tenant: str = OPEN
) -> int:
    """A whole request; returns how many tokens it reused."""
    with prefill(cache, tokens, namespace, tenant=tenant) as lease:
        return lease.reused


def serve_as(cache: PrefixCache, tenant: str, tokens: Iterable[int]) -> int:
    """A whole request of ``tenant``, in the namespace that is its own."""
    return serve(cache, tokens, tenant.encode(), tenant=tenant)


def found(cache: PrefixCache, tokens: Iterable[int], namespace: bytes = b"") -> int:
    """How many of ``tokens`` (and not one less) are in the cache."""
    return cache.peek(pack([*tokens, -1]), namespace).tokens


def nodes(cache: PrefixCache, namespace: bytes = b"") -> list[tuple[int, list[int]]]:
    """Every node below the root as (end, tokens of its edge), by depth."""
    root = cache.tree.roots.get(namespace)
    below = [] if root is None else [node for node in walk(root) if node is not root]
    return sorted((node.end, unpack(node.key)) for node in below)


def order(cache: PrefixCache, tenant: str = OPEN) -> EvictionOrder:
    """The cold leaves of ``tenant``."""
    return cache.accounts.of(tenant).order


def only_node(cache: PrefixCache, namespace: bytes = b"") -> Node:
    (node,) = [n for n in walk(cache.tree.roots[namespace]) if n.parent is not None]
    return node


def idle(cache: PrefixCache) -> bool:
    """Nothing is used: every page is free or cold, and nothing is pinned."""
    cache.check()
    return not cache.leases and cache.available == cache.pool.num_pages - 1


def used(cache: PrefixCache, tenant: str) -> int:
    """Pages that ``tenant`` has."""
    account = cache.accounts.get(tenant)
    return 0 if account is None else account.used


def public(*prefixes: list[int], num_pages: int = 64) -> PrefixCache:
    """A cache with pages of 4 tokens in which these prefixes are public."""
    cache = PrefixCache(num_pages, 4)
    cache.set_public([pack(each) for each in prefixes])
    return cache


def cache_of(pages: int = 32, page_size: int = 4, *, keep: float = 1.0) -> PrefixCache:
    """A cache of which such a share may be kept."""
    return PrefixCache(pages + 1, page_size, keep=keep)


def keep(
    cache: PrefixCache,
    tokens: Iterable[int],
    *marks: tuple[int | None, int],
    session: str = "",
    last: bool = False,
    namespace: bytes = b"",
    tenant: str = OPEN,
) -> Kept | None:
    """A whole request that marks these places."""
    lease = prefill(cache, tokens, namespace, tenant=tenant)
    reused = lease.reused
    kept = cache.finish(lease, Keeping(tuple(Mark(*each) for each in marks), session, last), reused)
    cache.check()
    return kept


def end(cache: PrefixCache, name: str) -> int | None:
    """The pages that are let go of with a conversation or a name."""
    pages = cache.end_session(OPEN, b"", name)
    cache.check()
    return pages


def tick(cache: PrefixCache) -> None:
    """A step that does nothing: whatever was used before it is older than what comes."""
    cache.end_step(cache.begin_step())


def held(cache: PrefixCache, tenant: str = OPEN) -> int:
    """Pages that are kept."""
    account = cache.accounts.get(tenant)
    return 0 if account is None else account.kept.total(cache.time)


def evict_one_by_one(cache: PrefixCache, *prompts: Iterable[int]) -> list[int]:
    """Which of ``prompts``, by place, loses each next page."""
    lost = []
    whole = [list(each) for each in prompts]
    before = [found(cache, each) for each in whole]
    while cache.evict(1):
        cache.check()
        after = [found(cache, each) for each in whole]
        lost += [place for place, (b, a) in enumerate(zip(before, after, strict=True)) if a < b]
        before = after
    return lost
