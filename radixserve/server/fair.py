"""Bounded memory that tenants share, in which nobody can push out what little another one has."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class FairLru(Generic[K, V]):
    """Values by tenant and key, within a number and a sum of sizes for all tenants together.

    Over one of these, the tenant that holds the most bytes gives up what it has not used for the
    longest time. Any number of threads may share it.

    Args:
        most: Values.
        most_bytes: The sum of their sizes, as they were given.
    """

    def __init__(self, *, most: int, most_bytes: int):
        self._most, self._most_bytes = most, most_bytes
        self._kept: dict[str, OrderedDict[K, tuple[V, int]]] = {}
        """By tenant; each one's by key, the least recently used first."""
        self._bytes: dict[str, int] = {}
        self._count = 0
        self._size = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """Bytes of all that is kept."""
        return self._size

    def put(self, tenant: str, key: K, value: V, size: int) -> list[tuple[str, K, V]]:
        """Keep ``value``, if it is not too large by itself. Returns what is not kept for that, or
        any more: whose, and under which key. O(what has to go · tenants)."""
        with self._lock:
            self._remove(tenant, key)
            if size > self._most_bytes:
                return [(tenant, key, value)]
            self._kept.setdefault(tenant, OrderedDict())[key] = value, size
            self._add(tenant, 1, size)
            gone = []
            while self._count > self._most or self._size > self._most_bytes:
                largest = max(self._bytes, key=lambda name: self._bytes[name])
                oldest, (lost, _) = next(iter(self._kept[largest].items()))
                self._remove(largest, oldest)
                gone.append((largest, oldest, lost))
            return gone

    def get(self, tenant: str, key: K) -> V | None:
        """The value, which counts as used; None if there is none. O(1)."""
        with self._lock:
            kept = self._kept.get(tenant)
            found = kept.get(key) if kept else None
            if kept is None or found is None:
                return None
            kept.move_to_end(key)
            return found[0]

    def remove(self, tenant: str, key: K) -> bool:
        """Forget a value; whether there was one. O(1)."""
        with self._lock:
            return self._remove(tenant, key)

    def forget(self, tenant: str, which: Callable[[K], bool] | None = None) -> None:
        """Everything of one tenant, or what has one of ``which`` keys. O(what it has)."""
        with self._lock:
            for key in list(self._kept.get(tenant, ())):
                if which is None or which(key):
                    self._remove(tenant, key)

    def clear(self) -> None:
        """Everything of everybody."""
        for tenant in list(self._kept):
            self.forget(tenant)

    def _remove(self, tenant: str, key: K) -> bool:
        kept = self._kept.get(tenant)
        found = kept.pop(key, None) if kept else None
        if found is None:
            return False
        self._add(tenant, -1, -found[1])
        if not kept:
            del self._kept[tenant], self._bytes[tenant]
        return True

    def _add(self, tenant: str, count: int, size: int) -> None:
        self._count += count
        self._size += size
        self._bytes[tenant] = self._bytes.get(tenant, 0) + size
