"""A cache with something of everything in it, to plant faults in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from radixserve.cache.errors import CacheError
from radixserve.cache.node import Node, Root
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.terms import Keeping, Mark
from radixserve.tokens import pack
from tests.cache.serving import order, prefill, serve


class Busy:
    """A cache with something of everything in it.

    ::

        root - trunk [0 .. 7] - left  [10 .. 13]   pinned by ``lease``, which has an open block
                              - right [20 .. 27]   cold
                              - open  [30]         cold, an open leaf
    """

    def __init__(self) -> None:
        self.cache = PrefixCache(64, 4)
        self.lease = prefill(self.cache, [*range(8), 10, 11, 12, 13, 14, 15])
        serve(self.cache, [*range(8), *range(20, 28)])
        serve(self.cache, [*range(8), 30])
        self.twin = self.lease.fork(bytearray(self.lease.tokens))
        self.reader = self.cache.acquire(pack([*range(8), 20, 21, 99]), b"")
        self.writer = self.lease.fork(bytearray(self.lease.tokens))
        assert self.writer.extend(1)
        self.purged = prefill(self.cache, range(6), b"gone")
        self.cache.purge(b"gone")
        spare = prefill(self.cache, range(500, 504), b"b")
        assert spare.extend(4)
        marked = prefill(self.cache, range(600, 608), b"kept")
        self.cache.finish(marked, Keeping((Mark(4, 60),), "s"))
        self.cache.begin_step()
        spare.release()
        self.cache.check()

    @property
    def root(self) -> Root:
        return self.cache.tree.roots[b""]

    @property
    def trunk(self) -> Node:
        assert self.root.children
        return self.root.children[0]

    def child(self, index: int) -> Node:
        assert self.trunk.children
        return self.trunk.children[index]

    @property
    def kept(self) -> Node:
        """Has one child, which is not kept."""
        (node,) = self.cache.tree.roots[b"kept"].children or ()
        return node

    @property
    def cold(self) -> Node:
        return order(self.cache).leaves()[0]


def check_finds(plant: Callable[[Busy], None], message: str) -> None:
    """The ledger says this of a fault that ``plant`` has put into a busy cache."""
    busy = Busy()
    plant(busy)
    with pytest.raises(CacheError, match=message):
        busy.cache.check()
