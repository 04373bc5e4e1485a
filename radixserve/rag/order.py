"""The order of documents: which of them a prefix cache probably still holds, and in what order.

A prefix is reused only as a whole, so that documents in the order of their rank, which differs with
each question, are hardly ever reused. A client has no view into the server's cache, but it knows
what it has sent::

    sent before     a b c d, a b e f          with x f b a retrieved, best first:

                        ┌ c ─ d                 a b  were sent in this order: reused
    as a trie    a ─ b ─┤                       f is known only behind e: computed
                        └ e ─ f                 a b x f is sent, and joins the trie

The trie may be wrong: the server has evicted, or was started again. Each answer says how many
tokens were reused, and corrects it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

MOST_NODES = 16_384
"""Documents in their places that are remembered."""


@dataclass(slots=True)
class _Node:
    used: int = 0
    """The tick of the last sequence that went through it; never older than a child's."""
    children: dict[Hashable, _Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sent:
    """A sequence that is on its way."""

    tick: int
    expected: tuple[int, ...]
    """When the first documents of the sequence were last sent in these places, as ticks: so many of
    them should still be cached."""


class SentOrders:
    """The sequences of documents that were sent lately. Threads may share it."""

    def __init__(self, most: int = MOST_NODES):
        self._most = most
        self._root = _Node()
        self._nodes = 0
        self._tick = 0
        self._open: set[int] = set()
        """Ticks of sequences that no answer has told of."""
        self._places: Counter[Hashable] = Counter()
        """Nodes of each document."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._nodes

    def arrange(
        self, keys: Sequence[Hashable], sizes: Sequence[int], *, max_shift: int | None = None
    ) -> list[int]:
        """Indices of ``keys``, which come in the order of their rank, as they should be sent.

        First the path of the trie that saves most, by ``sizes`` (above 0); among equals the one
        that begins with the better rank. Then the others by rank. With ``max_shift`` none ends up
        further than that from its rank.

        O(k) for each node of the trie that only ``keys`` lead to.
        """
        with self._lock:
            path = self._longest(keys, sizes, max_shift)
        return [*path, *sorted(set(range(len(keys))).difference(path))]

    def seen(self, keys: Sequence[Hashable]) -> tuple[bool, ...]:
        """Of each document: whether it was sent lately, in whatever place. O(k)."""
        with self._lock:
            return tuple(key in self._places for key in keys)

    def send(self, keys: Sequence[Hashable]) -> Sent:
        """Remember that ``keys`` are sent in this order. O(k), now and then O(nodes)."""
        with self._lock:
            self._tick += 1
            expected = []
            node, known = self._root, True
            for key in keys:
                child = node.children.get(key)
                known = known and child is not None and child.used not in self._open
                if child is None:
                    child = node.children[key] = _Node()
                    self._nodes += 1
                    self._places[key] += 1
                elif known:
                    expected.append(child.used)
                child.used = self._tick
                node = child
            self._open.add(self._tick)
            if self._nodes > self._most:
                self._forget(self._oldest_quarter())
            return Sent(self._tick, tuple(expected))

    def confirm(self, sent: Sent, cached: int) -> None:
        """The answer is here: the first ``cached`` documents were reused.

        Where fewer were than expected, the next one has been evicted, and so has what was used
        before it. A sequence that nobody confirms is never expected. O(nodes) at most.
        """
        with self._lock:
            self._open.discard(sent.tick)
            if cached < len(sent.expected):
                self._forget(sent.expected[cached])

    def _longest(
        self, keys: Sequence[Hashable], sizes: Sequence[int], max_shift: int | None
    ) -> list[int]:
        best: tuple[int, ...] = ()
        most = 0
        paths: list[tuple[_Node, tuple[int, ...], int]] = [(self._root, (), 0)]
        while paths:
            node, path, saved = paths.pop()
            if saved > most:
                best, most = path, saved
            for index in reversed(_allowed(len(keys), path, max_shift)):
                child = node.children.get(keys[index])
                if child is not None:
                    paths.append((child, (*path, index), saved + sizes[index]))
        return list(best)

    def _oldest_quarter(self) -> int:
        """The tick that a quarter of the nodes were last used at or before."""
        ticks, nodes = [], [self._root]
        while nodes:
            children = nodes.pop().children.values()
            ticks += [child.used for child in children]
            nodes += children
        return sorted(ticks)[len(ticks) // 4]

    def _forget(self, tick: int) -> None:
        """Drop the nodes that were last used at ``tick`` or before: whole branches, by the order of
        their times."""
        self._open = {each for each in self._open if each > tick}
        kept, dropped = [self._root], []
        while kept:
            children = kept.pop().children
            for key, child in list(children.items()):
                if child.used > tick:
                    kept.append(child)
                else:
                    dropped.append((key, children.pop(key)))
        while dropped:
            key, node = dropped.pop()
            dropped += node.children.items()
            self._nodes -= 1
            self._places[key] -= 1
            if not self._places[key]:
                del self._places[key]


def _allowed(count: int, path: tuple[int, ...], max_shift: int | None) -> list[int]:
    """The ranks that may follow ``path``, so that all others still reach a place near their own."""
    taken = set(path)
    left = [rank for rank in range(count) if rank not in taken]
    if max_shift is None or not left:
        return left
    place = len(path)
    if left[0] + max_shift <= place:
        return left[:1]
    return [rank for rank in left if rank <= place + max_shift]
