"""The tree as it is shown to somebody: a bounded part of it, and of one tenant its own alone."""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Sequence
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
import xxhash
from msgspec.structs import replace

from radixserve.cache.node import Node, Root
from radixserve.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from radixserve.cache.prefix_cache import PrefixCache

HEAD = 48
"""Tokens of an edge that are told."""
LOOKED_AT = 4
"""Of a node's children so many times more are looked at than may be shown: some have millions."""
SECRET = secrets.randbits(64)
EXACT = 2**52 - 1
"""Whole numbers that JavaScript keeps exact."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """An edge of the tree, and the point at its end."""

    id: int
    """Its first page, by which it is known as long as it is there. A tenant is told another number
    for that: pages would tell how many others take."""
    above: int | None
    """The node that it hangs from; None at the top, and where that is not shown."""
    start: int
    """Tokens of the prompt before this edge."""
    end: int
    """Tokens up to its end."""
    head: bytes
    """The first tokens of its edge (int32 big-endian)."""
    idle: int
    """Steps since it was used last, 0 of one that is pinned. A tenant is told their order alone:
    steps would tell how busy others are."""
    pins: int
    """Requests that run on it, and children that are pinned."""
    hits: int
    """Requests whose match ended at its end."""
    hidden: int
    """Children that are not shown."""
    tenant: str | None
    """Whose it is; None is everybody's."""


class TreeView(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What there was room for, parents before children, what was used lately first."""

    nodes: list[NodeView]
    total: int | None
    """Nodes of the whole tree but its roots, which one tenant is not told."""


def view(cache: PrefixCache, limit: int, tenant: str | None = None) -> TreeView:
    """At most ``limit`` nodes, of all tenants or of ``tenant``. Never changes anything.

    What is public is left out for a tenant: its pins and hits tell of others.
    O(roots + limit · ``LOOKED_AT`` · log limit).
    """
    hung: dict[Node, list[Root]] = {}
    if tenant is None:
        for root in cache.tree.hung.values():
            if root.above is not None:
                hung.setdefault(root.above, []).append(root)
    chosen: dict[Node, Node | None] = {}
    """Each with the one above it."""
    waiting: deque[tuple[Node, Node | None]] = deque()
    waiting.extend((root, None) for root in _lately(_tops(cache, tenant), limit))
    while waiting and len(chosen) < limit:
        node, above = waiting.popleft()
        if not isinstance(node, Root):
            chosen[node] = above
            above = node
        children = islice(node.children or (), LOOKED_AT * limit)
        below = _lately([*children, *hung.get(node, ())], limit)
        waiting.extend((each, above) for each in below)
    seen = Counter(node.parent for node in chosen)
    nodes = [
        _shown(cache, node, None if above is None else above.pages[0], seen[node])
        for node, above in chosen.items()
    ]
    nodes = _used_with_what_is_below(nodes)
    if tenant is None:
        total = cache.tree.nodes - len(cache.tree.all_roots())
        return TreeView(nodes=nodes, total=total)
    ages = {idle: place for place, idle in enumerate(sorted({node.idle for node in nodes}))}
    return TreeView(
        nodes=[
            replace(
                node,
                id=_disguised(node.id),
                above=None if node.above is None else _disguised(node.above),
                idle=ages[node.idle],
            )
            for node in nodes
        ],
        total=None,
    )


def _used_with_what_is_below(nodes: list[NodeView]) -> list[NodeView]:
    """Whoever uses a node uses those above it; the tree notes it of these when the node goes."""
    idle = {node.id: node.idle for node in nodes}
    for node in reversed(nodes):
        if node.above is not None:
            idle[node.above] = min(idle[node.above], idle[node.id])
    return [replace(node, idle=idle[node.id]) for node in nodes]


def _disguised(page: int) -> int:
    """A number for it as long as this process runs, which says nothing of it."""
    return xxhash.xxh3_64_intdigest(page.to_bytes(8), seed=SECRET) & EXACT


def _tops(cache: PrefixCache, tenant: str | None) -> list[Root]:
    if tenant is None:
        return list(cache.tree.roots.values())
    account = cache.accounts.get(tenant)
    return [root for root in cache.tree.all_roots() if root.account is account]


def _lately(nodes: Sequence[Node], limit: int) -> list[Node]:
    return nlargest(limit, nodes, key=attrgetter("pins", "last_use"))


def _shown(cache: PrefixCache, node: Node, above: int | None, seen: int) -> NodeView:
    return NodeView(
        id=node.pages[0],
        above=above,
        start=node.start,
        end=node.end,
        head=bytes(node.key[: HEAD * TOKEN_BYTES]),
        idle=0 if node.pins else max(0, cache.now - node.last_use),
        pins=node.pins,
        hits=node.hits,
        hidden=len(node.children or ()) - seen,
        tenant=None if node.account is cache.accounts.public else node.account.tenant,
    )
