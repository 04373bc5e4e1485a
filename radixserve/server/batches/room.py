"""How much of the disk a tenant's files may take."""

from __future__ import annotations

from dataclasses import dataclass

from radixserve.server.batches.store import Store
from radixserve.server.endpoint import Call
from radixserve.server.errors import ApiError

MOST_FILES = 10_000
"""Of a tenant: each takes a look whenever files are listed."""
FORM = 2**16
"""Bytes that an upload may have around its file."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a tenant's files took at one moment, results of its batches among them."""

    files: int
    used: int
    """Bytes."""
    limit: int
    """Bytes."""

    def check(self, size: int, param: str = "file") -> None:
        """Raises ApiError: 413, there is no room for ``size`` bytes more, in a file of their own,
        which the field ``param`` asks for."""
        if self.files >= MOST_FILES:
            says = f"You have {self.files} files, which is as many as a tenant may have"
            raise _full(says, param)
        if self.used + size > self.limit:
            says = f"Your files take {self.used} of the {self.limit} bytes that you may store, "
            raise _full(f"{says}and this needs {size} more", param)


def limit_of(call: Call) -> int:
    """Bytes that the tenant that asks may store."""
    own = call.visit.tenant.limits.stored_bytes
    return call.service.settings.files_limit if own is None else own


def room_of(store: Store, owner: str, limit: int) -> Room:
    """As of now. O(all files and batches), from disk."""
    sizes = [each.bytes for each in store.files(owner)]
    return Room(len(sizes), sum(sizes) + store.unfinished(owner), limit)


def _full(says: str, param: str) -> ApiError:
    return ApiError(
        status=413,
        message=f"{says}. Delete some that you need no more: GET /v1/files lists them, "
        "DELETE /v1/files/ID deletes one.",
        param=param,
        code="storage_limit_exceeded",
        # What is still on its way would be read as the next request.
        headers={"connection": "close"},
    )
