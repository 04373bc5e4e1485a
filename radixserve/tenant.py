"""What an operator promises a tenant: words of the cache, the scheduler and the server."""

from __future__ import annotations

import msgspec

OPEN = ""
"""The tenant of everybody, where nobody has to say who they are."""


class Terms(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One tenant's shares. Whoever has none is served by the defaults."""

    weight: float = 1.0
    """Its part of the engine's work beside those of other tenants that wait too."""
    guaranteed: float = 0.0
    """Share of the KV pages, 0 to 1, that others never evict."""
    maximum: float = 1.0
    """Share of the KV pages, 0 to 1, beyond which it evicts its own."""
    keep: float | None = None
    """Part of that maximum, 0 to 1, that it may keep for a time; None is what the engine says."""
