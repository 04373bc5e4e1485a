"""Forgetting what is cached, also under load.

Running requests keep what they hold, nobody else finds it any more, and nothing that they compute
later is published.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.cache.lease import Lease
from radixserve.cache.node import Root
from radixserve.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from radixserve.cache.prefix_cache import PrefixCache


@dataclass(frozen=True, slots=True)
class Purge:
    """What a purge did, in pages."""

    dropped: int
    held: int
    """Still used by running requests; they come back when those end, and nobody else sees them."""


def forget(cache: PrefixCache, roots: Iterable[Root], leases: Iterable[Lease]) -> Purge:
    """Cut off ``roots`` with all that is below them; ``leases`` are those of their namespaces.
    O(nodes cut off + leases)."""
    # Those further on are anchored below one of the roots, and find themselves cut off.
    for lease in leases:
        if lease.published * TOKEN_BYTES < len(lease.public):
            lease.keep = False
    dropped = held = 0
    for root in roots:
        freed, still = cache.tree.detach(root)
        cache.give_back(root.account, freed)
        dropped += len(freed)
        held += still
    return Purge(dropped, held)


def withdraw(cache: PrefixCache, prefix: bytes) -> None:
    """``prefix`` is public no more: forget what hangs below it, and it itself as far as it is not
    part of another public prefix. O(tokens + leases + roots + nodes cut off)."""
    forget(
        cache,
        [root for root in cache.tree.all_roots() if root.prefix == prefix],
        [lease for lease in cache.leases if lease.public == prefix],
    )
    tree = cache.tree
    root = tree.roots.get(cache.public.namespace)
    kept = cache.public.common(prefix)
    if root is None or kept == len(prefix):
        return
    anchor, at, child, common = tree.descend(root, prefix, kept)
    if at + common < kept:
        return
    gone = prefix[kept : kept + tree.block]
    if child is not None:
        if not child.key.startswith(gone, common):
            return
        anchor = tree.split(child, common)
    rest = anchor.child(gone)
    if rest is not None:
        cache.give_back(rest.account, tree.detach(rest)[0])
