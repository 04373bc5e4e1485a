"""The prefixes that tenants have declared public, for as long as the server runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from radixserve.server.errors import invalid

MOST_OF_A_TENANT = 16
"""Prefixes. Every request is compared with all there are."""


@dataclass(frozen=True, slots=True)
class PublicPrefix:
    """One that ``tenant`` calls ``name``; nobody else sees that name."""

    tenant: str
    name: str
    tokens: bytes
    """int32 big-endian, whole blocks."""
    created_at: int
    """Unix time, in seconds."""


class Declarations:
    """By tenant and name. Belongs to one event loop."""

    def __init__(self) -> None:
        self._declared: dict[tuple[str, str], PublicPrefix] = {}

    def put(self, prefix: PublicPrefix) -> None:
        """Declare ``prefix``, in place of the tenant's one of that name.

        Raises:
            ApiError: 400, the tenant has as many as it may.
        """
        place = prefix.tenant, prefix.name
        if place not in self._declared and len(self.of(prefix.tenant)) >= MOST_OF_A_TENANT:
            message = (
                f"A tenant may have {MOST_OF_A_TENANT} public prefixes: withdraw one "
                "with DELETE /v1/cache/public/NAME"
            )
            raise invalid(None, message, "too_many_public_prefixes")
        self._declared[place] = prefix

    def remove(self, tenant: str, name: str) -> bool:
        """Withdraw a prefix; returns whether there was one."""
        return self._declared.pop((tenant, name), None) is not None

    def keep_of(self, may_publish: Callable[[str], bool]) -> None:
        """Withdraw those of tenants that may have none any more."""
        self._declared = {
            place: each for place, each in self._declared.items() if may_publish(each.tenant)
        }

    def of(self, tenant: str | None = None) -> list[PublicPrefix]:
        """Those of ``tenant``, or all, in the order of their first declaration."""
        return [each for each in self._declared.values() if tenant in (None, each.tenant)]
