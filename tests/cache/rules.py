"""What the rules of the cache say, found by looking at all that is in it."""

from __future__ import annotations

from collections import Counter

from radixserve.cache.eviction import SLACK, UNUSED
from radixserve.cache.namespace import PUBLIC
from radixserve.cache.node import Node, Root, walk
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.quota import Account
from radixserve.cache.terms import DONE, due, end_of
from radixserve.tokens import pack, unpack


class Rules:
    """What is to be found, and whose page is to go; each answer takes the whole tree."""

    def __init__(self, cache: PrefixCache, seen: Counter[str]):
        self.cache = cache
        self.seen = seen
        self.public: list[list[int]] = []

    def longest(self, namespace: bytes, prompt: list[int], limit: int | None) -> int:
        """The longest common head with any path from the root, found by walking all of them."""
        most = len(prompt) - 1 if limit is None else max(0, min(limit, len(prompt) - 1))
        tree = self.cache.tree
        public = self.public_head(prompt)
        if not public:
            return self._along(tree.roots.get(namespace), [], prompt, most)
        shared = self._along(tree.roots.get(PUBLIC), [], prompt, min(most, len(public)))
        if shared < len(public):
            return shared
        return max(
            shared, self._along(tree.hung.get((namespace, pack(public))), public, prompt, most)
        )

    def _along(self, root: Node | None, above: list[int], prompt: list[int], most: int) -> int:
        best = 0
        stack: list[tuple[Node, list[int]]] = [(root, above)] if root is not None else []
        while stack:
            node, path = stack.pop()
            path = path + unpack(node.key)
            common = 0
            while common < min(len(path), most) and path[common] == prompt[common]:
                common += 1
            best = max(best, common)
            stack.extend((child, path) for child in node.children or ())
        return best

    def public_head(self, tokens: list[int]) -> list[int]:
        return max((p for p in self.public if tokens[: len(p)] == p), key=len, default=[])

    def roots(self, namespace: bytes | None = None) -> list[Root]:
        tree = self.cache.tree
        roots = [*tree.roots.values(), *tree.hung.values()]
        return [each for each in roots if namespace in (None, each.namespace)]

    def cold(self) -> list[Node]:
        """The leaves that may be evicted now, by the rules and not by the order."""
        return [
            node
            for root in self.roots()
            for node in walk(root)
            if not node.children and not node.pins and node is not root
            if not self.cache.tree.hanging(node)
            if node.last_use <= self.cache.pool.ended
        ]

    def only_page_to_go(self, account: Account, needed: int) -> int | None:
        """The only page that has to go for ``needed`` ones, if that is plain to see."""
        cache = self.cache
        if needed != cache.pool.free + 1 or account.used + needed > account.quota.maximum:
            return None
        cold = self.cold()
        leaves = [leaf for leaf in cold if not self._loses(leaf)[0]]
        leaves = leaves or [leaf for leaf in cold if leaf.account is account]
        if not leaves:
            return None  # there is none but what is guaranteed to others
        self.seen["the first page went"] += 1
        return self.first(leaves, account).pages[-1]

    def first(self, leaves: list[Node], asks: Account | None = None) -> Node:
        """The one that is to lose the next page, for the sake of somebody or of nobody."""
        losing = min(map(self._loses, leaves))
        return self._goes([leaf for leaf in leaves if self._loses(leaf) == losing], asks)

    def _goes(self, leaves: list[Node], asks: Account | None) -> Node:
        """Which of one account's goes."""
        clock = self.cache.allocator.clock
        others = [leaf for leaf in leaves if leaf.kept >= 0 or due(leaf.kept) + SLACK <= clock.now]
        awaited = [leaf for leaf in leaves if leaf not in others]
        last = min(awaited, key=lambda leaf: (leaf.kept, *_age(leaf)), default=None)
        kept = {leaf: leaf.kept if end_of(leaf.kept) > clock.now else 0 for leaf in others}
        other = min(others, key=lambda leaf: (kept[leaf], *_age(leaf)), default=None)
        if last is None:
            assert other is not None
            return self._passes_by(other, kept, asks)
        if other is None:
            return last
        waits = due(last.kept) - clock.now
        unused = clock.age(other.last_use) + UNUSED
        self.seen["awaited before the coldest"] += waits > unused and last.kept != DONE
        self.seen["awaited behind the coldest"] += waits <= unused
        return last if kept[other] or waits > unused else self._passes_by(other, kept, asks)

    def _passes_by(self, other: Node, kept: dict[Node, int], asks: Account | None) -> Node:
        """``other`` goes by age; if it is young and somebody asks, a newcomer goes for it."""
        admission = self.cache.allocator.admission
        if admission is None or asks is None or kept[other] > 0:
            return other
        old = admission.old(other.account)
        newcomers = [leaf for leaf in kept if leaf.newcomer and not kept[leaf]]
        if other.last_use <= old or not newcomers:
            return other
        self.seen["newcomers before the young"] += 1
        return min(newcomers, key=_age)

    def _loses(self, leaf: Node) -> tuple[object, ...]:
        """By whom the next page is to be lost when nobody in particular asks."""
        account = leaf.account
        quota = account.quota
        place: tuple[object, ...] = (1, -account.cold, account.serial)
        if account.used > quota.guaranteed:
            beyond = min(0, quota.maximum - account.used)
            excess = (account.used - quota.guaranteed) / quota.weight
            place = (0, beyond, not account.idle, -(excess // 1), account.serial)
        return place

    def entitled(self, tenant: str) -> dict[str, int]:
        """Pages of each other tenant that ``tenant`` may not bring it below."""
        return {
            each.tenant: min(each.used, each.quota.guaranteed)
            for each in self._tenants()
            if each.tenant != tenant
        }

    def expect_guaranteed(self, tenant: str, fair: dict[str, int]) -> None:
        if len(self.cache.leases) > 1 or self.cache.pool.quarantined:
            for each in self._tenants():
                least = fair.get(each.tenant, 0)
                assert each.used >= least, f"{each.tenant!r} fell to {each.used} for {tenant!r}"

    def promised(self) -> bool:
        return any(each.quota.guaranteed for each in self._tenants())

    def _tenants(self) -> list[Account]:
        return [each for each in self.cache.accounts if each is not self.cache.accounts.public]

    def shape(self) -> tuple[object, ...]:
        """All that a refusal or a peek must leave as it was."""
        nodes = [
            (
                node.end,
                bytes(node.key),
                tuple(node.pages),
                node.pins,
                node.last_use,
                node.hits,
                node.kept,
            )
            for root in self.roots()
            for node in walk(root)
        ]
        pool = self.cache.pool
        return nodes, pool.free, pool.quarantined, self._orders()

    def _orders(self) -> list[list[Node]]:
        orders = [each.order.leaves() for each in self.cache.accounts]
        return [leaves for leaves in orders if leaves]


def _age(leaf: Node) -> tuple[int, int, int]:
    return leaf.last_use, -leaf.end, leaf.pages[-1]
