"""Proof that every page is in exactly one place and that the tree is what it claims to be."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from radixserve.cache.errors import CacheError
from radixserve.cache.node import Node, Root, upper, walk
from radixserve.cache.pages import SCRATCH_PAGE
from radixserve.cache.terms import end_of
from radixserve.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from radixserve.cache.prefix_cache import PrefixCache
    from radixserve.cache.quota import Account


def check(cache: PrefixCache) -> None:
    """Free + tree + cut off + private + quarantined == all; pins, orders and counters agree, each
    tenant's and those of all together.

    Raises:
        CacheError: with what is wrong, at the first thing found.
    """
    attached = [node for root in cache.tree.all_roots() for node in walk(root)]
    cut_off = _cut_off(cache)
    _check_pages(cache, attached, cut_off)
    for node in attached:
        _check_node(cache, node)
    _check_roots(cache)
    _check_pins(cache, [*attached, *cut_off])
    _check_leases(cache)
    _check_copies(cache, [*attached, *cut_off])
    _check_orders(cache, attached)
    _check_counters(cache, attached, cut_off)
    _check_accounts(cache, attached, cut_off)
    _check_kept(cache, attached)


def _demand(condition: bool, message: str) -> None:
    if not condition:
        raise CacheError(message)


def _cut_off(cache: PrefixCache) -> list[Node]:
    """Nodes that a purge cut off and that leases still hold."""
    found: dict[int, Node] = {}
    for lease in cache.leases:
        sources = [node for _, node in lease.pending if node is not None]
        for start in [lease.anchor, *sources]:
            node: Node | None = start
            while node is not None and not node.attached and id(node) not in found:
                found[id(node)] = node
                node = upper(node)
    return list(found.values())


def _check_pages(cache: PrefixCache, attached: list[Node], cut_off: list[Node]) -> None:
    pool = cache.pool
    held: Counter[int] = Counter()
    for node in [*attached, *cut_off]:
        held.update(node.pages)
    for page, count in held.items():
        _demand(count == 1, f"page {page} stands {count} times in the tree")
        _demand(pool.holders(page) == 1, f"page {page} of the tree has other holders")
    blocks: dict[int, int] = {}
    for lease in cache.leases:
        first = lease.published // cache.page_size
        for block, page in enumerate(lease.pages[first:], first):
            _demand(
                blocks.setdefault(page, block) == block, f"page {page} is shared as another block"
            )
        held.update(lease.pages[first:])
        held.update(copy.source for copy, node in lease.pending if node is None)
    idle = pool.idle()
    resting = Counter(idle)
    for page in range(SCRATCH_PAGE + 1, pool.num_pages):
        _demand(
            held[page] == pool.holders(page),
            f"page {page} has {held[page]} holders, the pool counts {pool.holders(page)}",
        )
        places = resting[page] + (1 if held[page] else 0)
        _demand(places == 1, f"page {page} is in {places} places")
    _demand(SCRATCH_PAGE not in held and SCRATCH_PAGE not in resting, "the scratch page is in use")
    _demand(len(idle) == pool.free + pool.quarantined, "the pool miscounts its idle pages")
    _demand(pool.sound(), "a page waits for a step that has ended")


def _check_node(cache: PrefixCache, node: Node) -> None:
    tree = cache.tree
    size = tree.block
    _demand(node.attached, "a node in the tree says that it was cut off")
    children = node.children or []
    _demand(
        node.children is None or bool(node.children) or tree.hanging(node) > 0,
        "an empty list of children is kept",
    )
    for child in children:
        _demand(child.parent is node, "a child names another parent")
        _demand(child.end == node.end + len(child.key) // TOKEN_BYTES, "a node miscounts its depth")
        blocks = -(-len(child.key) // size)
        _demand(bool(child.key) and blocks == len(child.pages), "a node's key and pages differ")
        if tree.is_open(child):
            _demand(child.children is None and blocks == 1, "an open leaf is not a leaf")
    _demand(0 <= node.newcomer <= len(node.pages), "a newcomer has more pages than its node")
    for first, second in pairwise(child.key for child in children):
        _demand(first < second, "a node's children are out of order")
        _demand(first[:size] != second[:size], "two children begin with the same block")
    if isinstance(node, Root):
        return
    _demand(
        all(child.kept <= node.kept for child in children),
        "a node is kept for longer than what is above it",
    )
    if len(children) == 1 and not (tree.hanging(node) or tree.is_open(children[0])):
        seam = node.kept != children[0].kept or node.pins > (1 if children[0].pins else 0)
        _demand(seam, "a chain of single children is not joined")


def _check_roots(cache: PrefixCache) -> None:
    for namespace, root in cache.tree.roots.items():
        _demand(root.namespace == namespace, "a root stands under another namespace")
        _demand(root.children is not None or root.pins > 0, "an empty root is kept")
        _demand(not root.key and not root.pages and root.parent is None, "a root is not a root")
    for (namespace, prefix), root in cache.tree.hung.items():
        _demand((root.namespace, root.prefix) == (namespace, prefix), "a root hangs elsewhere")
        _demand(root.children is not None or root.pins > 0, "an empty root is kept")
        above = root.above
        _demand(
            above is not None
            and above.attached
            and above.account is cache.accounts.public
            and above.children is not None
            and above.end * TOKEN_BYTES == root.end * TOKEN_BYTES == len(prefix),
            "a root does not hang at the end of a public prefix",
        )


def _check_pins(cache: PrefixCache, nodes: list[Node]) -> None:
    anchors: Counter[int] = Counter()
    for lease in cache.leases:
        anchors[id(lease.anchor)] += 1
        anchors.update(id(node) for _, node in lease.pending if node is not None)
    below = Counter(id(upper(node)) for node in nodes if node.pins)
    for node in nodes:
        pinned = below[id(node)]
        _demand(
            node.pins == anchors[id(node)] + pinned,
            f"{node.pins} pins, but {anchors[id(node)]} anchors and {pinned} pinned children",
        )
    hanging = Counter(node.above for node in nodes if isinstance(node, Root))
    for node in nodes:
        _demand(cache.tree.hanging(node) == hanging[node], "the roots below a node are miscounted")


def _check_leases(cache: PrefixCache) -> None:
    for lease in cache.leases:
        _demand(not lease.released, "a released lease is on the books")
        _demand(lease.published == lease.anchor.end, "a lease is not anchored where it published")
        _demand(lease.published % cache.page_size == 0, "a lease published a part of a block")
        row: list[int] = []
        path = b""
        node: Node | None = lease.anchor
        while node is not None:
            row[:0] = node.pages
            path = bytes(node.key) + path
            node = upper(node)
        _demand(list(lease.pages[: len(row)]) == row, "a lease's row differs from its path")
        _demand(lease.tokens.startswith(path), "a lease's tokens differ from its path")
        _demand(
            lease.published <= lease.computed <= len(lease.pages) * cache.page_size,
            "a lease computed more than it has pages for",
        )


def _check_copies(cache: PrefixCache, nodes: list[Node]) -> None:
    pinned = {page for node in nodes if node.pins for page in node.pages}
    for lease in cache.leases:
        own = lease.pages[lease.published // cache.page_size :]
        for copy, node in lease.pending:
            _demand(copy.target in own, "a copy goes into a page of another")
            _demand(node is None or copy.source in pinned, "the source of a copy is not pinned")


def _check_orders(cache: PrefixCache, attached: list[Node]) -> None:
    leaves: dict[Account, set[Node]] = defaultdict(set)
    for node in attached:
        if node.children is None and not node.pins and not isinstance(node, Root):
            leaves[node.account].add(node)
    for account in cache.accounts:
        listed = account.order.leaves()
        _demand(
            set(listed) == leaves.pop(account, set()),
            "an eviction order is not the set of a tenant's unpinned leaves",
        )
        _demand(len(listed) == len(set(listed)), "a leaf stands twice in an eviction order")
        _demand(account.order.sound(), "a leaf stands at the wrong place of an eviction order")
    _demand(not leaves, "a cold leaf is on no open account")


def _check_counters(cache: PrefixCache, attached: list[Node], cut_off: list[Node]) -> None:
    tree = cache.tree
    pages = sum(len(node.pages) for node in attached)
    cold = sum(len(node.pages) for node in attached if not node.pins)
    nodes = len(attached) + len(cut_off)
    _demand(tree.pages == pages, f"the tree counts {tree.pages} pages and has {pages}")
    _demand(tree.evictable == cold, f"the tree counts {tree.evictable} cold pages and has {cold}")
    _demand(tree.nodes == nodes, f"the tree counts {tree.nodes} nodes and has {nodes}")


def _check_accounts(cache: PrefixCache, attached: list[Node], cut_off: list[Node]) -> None:
    used: dict[Account, set[int]] = defaultdict(set)
    cold: Counter[Account] = Counter()
    for node in [*attached, *cut_off]:
        parent = node.parent
        _demand(
            parent is None or parent.account is node.account,
            "a node is on another account than the one above it",
        )
        used[node.account].update(node.pages)
        if node.attached and not node.pins:
            cold[node.account] += len(node.pages)
    for lease in cache.leases:
        used[lease.account].update(lease.pages[lease.published // cache.page_size :])
        used[lease.account].update(copy.source for copy, node in lease.pending if node is None)
    leases = Counter(lease.account for lease in cache.leases)
    for account in cache.accounts:
        name = f"the account of {account.tenant!r}"
        found = len(used.pop(account, ()))
        _demand(account.used == found, f"{name} counts {account.used} pages and has {found}")
        found = cold[account]
        _demand(account.cold == found, f"{name} counts {account.cold} cold pages and has {found}")
        found = leases.pop(account, 0)
        _demand(account.leases == found, f"{name} counts {account.leases} leases and has {found}")
    _demand(not any(used.values()), "pages are on an account that is closed")
    _demand(not leases, "a lease is on an account that is closed")
    _demand(cache.accounts.sound(), "the accounts are not ranked by what they are now")


def _check_kept(cache: PrefixCache, attached: list[Node]) -> None:
    kept: dict[Account, Counter[int]] = defaultdict(Counter)
    ends: dict[Account, set[Node]] = defaultdict(set)
    for node in attached:
        ends[node.account].add(node)
        if node.kept > 0:
            kept[node.account][end_of(node.kept)] += len(node.pages)
    for account in cache.accounts:
        name = f"the account of {account.tenant!r}"
        known = account.kept.by_end()
        found = {end: pages for end, pages in kept[account].items() if end in known}
        _demand(known == found, f"{name} counts {known} kept pages and has {found}")
        missed = [end for end in kept[account] if end not in known and end > cache.time]
        _demand(not missed, f"{name} does not count all that it keeps")
        total = sum(pages for end, pages in known.items() if end > cache.time)
        _demand(account.kept.total(cache.time) == total, f"{name} miscounts what it keeps")
        if account.sessions is not None:
            places = [at for at in account.sessions.places() if not isinstance(at, Root)]
            _demand(ends[account].issuperset(places), f"a session of {name} ends outside the tree")
            _demand(account.sessions.sound(), f"the sessions of {name} are miscounted")
