"""What was asked lately: enough of it to say later why a prompt was not found.

A tenant's requests are only ever compared with each other, and only those that may share what is
cached: so many bytes are kept for each tenant, whatever others do, and no more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

import xxhash
from sortedcontainers import SortedKeyList

from radixserve.common import common_length
from radixserve.explain.bodies import Bodies, Kept
from radixserve.explain.reason import Explanation

State = Literal["running", "done", "aborted", "failed"]
Wiped = Literal["purged", "reset"]
"""The cache of a namespace or a tenant was forgotten, or that of all."""

TOTAL = 64 * 2**20
"""Bytes of all tenants, and"""
LEAST = 2**18
"""bytes of one, however many there are."""
RECORD = 1350
"""Bytes that a request costs beside its tokens and its body."""
TOKEN = 4
"""Bytes; tokens are int32 big-endian."""
HEAD = 16
"""Tokens by which a prompt is known again once it was wiped."""
LATELY = 4
"""Requests of a namespace that are at hand although others have more in common."""
MOST_WIPED = 4096
"""Heads that are known of a tenant."""


@dataclass(slots=True, eq=False)
class Record:
    """A request: what it asked, what became of it."""

    id: str
    tenant: str
    namespace: bytes
    mode: str
    """of the cache: only what ran with ``on`` has left something."""
    epoch: int
    """Times that the engine had been started again when it came."""
    began: float
    """Unix time, in seconds."""
    length: int
    """Tokens of the prompt."""
    body: Kept
    tokens: bytes = b""
    """The prompt; empty once ``extended_by`` has it too."""
    extended_by: Record | None = None
    called: str = ""
    """Another name by which it is found, which nobody can guess; empty if it has none."""
    answer: bytes = b""
    """Tokens of its first answer, once that has ended."""
    state: State = "running"
    explanation: Explanation | None = None
    unexplained: bool = False
    """Something went wrong in explaining it."""
    size: int = 0

    @property
    def prompt(self) -> bytes:
        """The tokens of the prompt, from any thread. O(tokens + later requests that have it)."""
        holder: Record | None = self
        while holder is not None:
            # Whoever gives up its tokens has said before who has them.
            if tokens := holder.tokens:
                return tokens[: self.length * TOKEN]
            holder = holder.extended_by
        return b""


@dataclass(slots=True)
class Alike:
    """An earlier request, and the head that it has in common with a prompt."""

    record: Record
    common: int
    """Tokens; those of its answer count."""
    state: State
    """Of it at that time."""


@dataclass(slots=True)
class Shelf:
    """What is kept for one tenant."""

    records: OrderedDict[str, Record] = field(default_factory=OrderedDict)
    """By id, the oldest first."""
    called: dict[str, Record] = field(default_factory=dict)
    """By their other names: the last one of each."""
    orders: dict[bytes, SortedKeyList[Record, bytes]] = field(default_factory=dict)
    """By namespace, those that no later one extends, sorted by their tokens."""
    lately: dict[bytes, deque[Record]] = field(default_factory=dict)
    """By namespace, the last ones."""
    bodies: Bodies = field(default_factory=Bodies)
    held: int = 0
    """Bytes beside bodies."""
    wiped: OrderedDict[int, tuple[Wiped, float]] = field(default_factory=OrderedDict)
    """Heads of what was forgotten: why and when."""

    @property
    def size(self) -> int:
        return self.held + self.bodies.size


class Trail:
    """The requests of all tenants. Belongs to one event loop.

    Args:
        tenants: says how many there may be.
        total: bytes.
    """

    def __init__(self, tenants: Callable[[], int] = lambda: 1, *, total: int = TOTAL):
        self._tenants = tenants
        self._total = total
        self._shelves: dict[str, Shelf] = {}

    @property
    def share(self) -> int:
        """Bytes that are kept for a tenant. Not what others leave: that would tell of them."""
        return max(LEAST, self._total // max(1, self._tenants()))

    @property
    def size(self) -> int:
        """Bytes that are kept. O(tenants)."""
        return sum(shelf.size for shelf in self._shelves.values())

    def nearest(self, tenant: str, namespace: bytes, tokens: bytes) -> list[Alike]:
        """Who has the longest head in common with ``tokens``, if anybody has; behind it the last
        ones that came, the latest first, which may have none. O(log requests · tokens compared)."""
        shelf = self._shelves.get(tenant)
        if shelf is None:
            return []
        best = self.alike(tenant, namespace, tokens)
        lately = reversed(shelf.lately.get(namespace, ()))
        if best is None:
            return [_alike(each, tokens) for each in lately]
        return [best, *(_alike(each, tokens) for each in lately if each is not best.record)]

    def alike(self, tenant: str, namespace: bytes, tokens: bytes) -> Alike | None:
        """Who has the longest head in common with ``tokens``, among those of the namespace.
        O(log requests · tokens compared)."""
        shelf = self._shelves.get(tenant)
        order = None if shelf is None else shelf.orders.get(namespace)
        if order is None:
            return None
        place = order.bisect_key_right(tokens)
        best = None
        for record in order[max(0, place - 1) : place + 1]:
            each = _alike(record, tokens)
            if each.common and (best is None or each.common > best.common):
                best = each
        return best

    def add(self, record: Record, body: bytes, *, extends: Record | None = None) -> None:
        """Keep ``record``, and let the oldest of its tenant go. ``extends`` says whose prompt its
        own begins with. O(log requests · tokens compared + bytes of the body)."""
        shelf = self._shelves.setdefault(record.tenant, Shelf())
        if record.id in shelf.records:
            self._drop(shelf, shelf.records[record.id])
        record.body = shelf.bodies.keep(body)
        record.size = len(record.tokens) + len(record.called) + RECORD
        shelf.held += record.size
        shelf.records[record.id] = record
        if record.called:
            shelf.called[record.called] = record
        order = shelf.orders.get(record.namespace)
        if order is None:
            order = shelf.orders[record.namespace] = SortedKeyList(key=attrgetter("tokens"))
        if extends is not None and extends.extended_by is None and extends.id in shelf.records:
            order.remove(extends)
            shelf.held -= len(extends.tokens)
            extends.size -= len(extends.tokens)
            extends.extended_by, extends.tokens = record, b""
        order.add(record)
        shelf.lately.setdefault(record.namespace, deque(maxlen=LATELY)).append(record)
        self._fit(shelf)

    def end(self, record: Record, state: State, answer: bytes) -> None:
        """It has ended, with ``answer`` as the tokens of its first answer. O(1) amortised."""
        record.state = state
        shelf = self._shelves.get(record.tenant)
        if shelf is None or shelf.records.get(record.id) is not record:
            return
        record.answer = answer
        record.size += len(answer)
        shelf.held += len(answer)
        self._fit(shelf)

    def remove(self, record: Record) -> None:
        """It was not asked after all. O(log requests · tokens compared)."""
        shelf = self._shelves.get(record.tenant)
        if shelf is not None and shelf.records.get(record.id) is record:
            self._drop(shelf, record)

    def find(self, tenant: str, id: str) -> Record | None:
        """The tenant's request of this id, or the last one that was called so. O(1)."""
        shelf = self._shelves.get(tenant)
        return None if shelf is None else shelf.records.get(id) or shelf.called.get(id)

    def wipe(
        self, why: Wiped, now: float, *, tenant: str | None = None, namespace: bytes | None = None
    ) -> None:
        """Forget what was asked, all or that of a tenant or a namespace, since what was cached of
        it is forgotten too; keep hashes of how it began. O(requests)."""
        names = list(self._shelves) if tenant is None else [tenant]
        for shelf in filter(None, map(self._shelves.get, names)):
            for record in list(shelf.records.values()):
                if namespace is None or record.namespace == namespace:
                    shelf.wiped[_head(record.namespace, record.prompt)] = (why, now)
                    self._drop(shelf, record)
            while len(shelf.wiped) > MOST_WIPED:
                shelf.wiped.popitem(last=False)

    def forget(self, tenant: str) -> None:
        """Nothing is left of a tenant. O(1)."""
        self._shelves.pop(tenant, None)

    def wiped(self, tenant: str, namespace: bytes, tokens: bytes) -> tuple[Wiped, float] | None:
        """Why and when a prompt that begins as this one was forgotten. O(1)."""
        shelf = self._shelves.get(tenant)
        return None if shelf is None else shelf.wiped.get(_head(namespace, tokens))

    def _fit(self, shelf: Shelf) -> None:
        while shelf.size > self.share and shelf.records:
            self._drop(shelf, next(iter(shelf.records.values())))

    def _drop(self, shelf: Shelf, record: Record) -> None:
        del shelf.records[record.id]
        if shelf.called.get(record.called) is record:
            del shelf.called[record.called]
        shelf.bodies.drop(record.body)
        shelf.held -= record.size
        record.body, record.size = {}, 0
        if record.extended_by is None:
            order = shelf.orders[record.namespace]
            order.remove(record)
            if not order:
                del shelf.orders[record.namespace]
        lately = shelf.lately.get(record.namespace, ())
        if isinstance(lately, deque) and record in lately:
            lately.remove(record)
            if not lately:
                del shelf.lately[record.namespace]


def _alike(record: Record, tokens: bytes) -> Alike:
    return Alike(record, common_tokens(record, tokens), record.state)


def common_tokens(record: Record, tokens: bytes) -> int:
    """Tokens that a prompt has in common with a request and its answer. O(tokens)."""
    prompt = record.prompt
    common = common_length(prompt, tokens)
    if common == len(prompt):
        common += common_length(record.answer, tokens[common : common + len(record.answer)])
    return common // TOKEN


def _head(namespace: bytes, tokens: bytes) -> int:
    return xxhash.xxh3_64_intdigest(namespace + tokens[: HEAD * TOKEN])
