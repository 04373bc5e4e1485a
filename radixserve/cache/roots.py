"""Where namespaces begin: by themselves, or below a public prefix."""

from __future__ import annotations

from radixserve.cache.node import Node, Root


class Roots:
    """All roots, and how many hang below a node.

    Below whose end any hang, that is no leaf, and stays a node of its own.
    """

    __slots__ = ("_below", "hung", "named")

    def __init__(self) -> None:
        self.named: dict[bytes, Root] = {}
        """One a namespace, so that namespaces never meet among one node's neighbours."""
        self.hung: dict[tuple[bytes, bytes], Root] = {}
        """Those that hang below a public prefix, by namespace and prefix."""
        self._below: dict[Node, int] = {}

    def all(self) -> list[Root]:
        """What hangs below public prefixes first. O(roots)."""
        return [*self.hung.values(), *self.named.values()]

    def below(self, node: Node) -> int:
        """How many hang below ``node``. O(1)."""
        return self._below.get(node, 0)

    def put(self, root: Root) -> None:
        """``root`` is new, and can be found from now on. O(1)."""
        above = root.above
        if above is None:
            self.named[root.namespace] = root
            return
        self.hung[root.namespace, root.prefix] = root
        self._below[above] = self._below.get(above, 0) + 1
        if above.children is None:
            above.children = []

    def forget(self, root: Root) -> None:
        """Nobody finds ``root`` any more. O(1)."""
        if root.above is None:
            del self.named[root.namespace]
        else:
            del self.hung[root.namespace, root.prefix]

    def unhang(self, root: Root) -> Node | None:
        """Nothing is left below ``root``: the end of its public prefix, if it was the last one
        there, which may go now too. O(1)."""
        above, root.above = root.above, None
        if above is None:
            return None
        above.last_use = max(above.last_use, root.last_use)
        self._below[above] -= 1
        if self._below[above]:
            return None
        del self._below[above]
        if not above.children:
            above.children = None
        return above
