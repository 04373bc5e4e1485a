"""How many requests a server answers at most, and how many another does at the same first-token
time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Numbers = dict[str, Any]

RISES = 1.02
"""By so much more than at any lower rate a server has to answer to count as not saturated yet."""


def saturated(points: Sequence[Numbers]) -> bool:
    """Whether the last point, at the highest rate, brought no more answers a second than others."""
    *lower, last = points
    return any(last["requests_per_s"] < RISES * point["requests_per_s"] for point in lower)


def saturation(points: Sequence[Numbers]) -> Numbers | None:
    """Where a server answered the most requests a second; None of no points."""
    return max(points, key=lambda point: point["requests_per_s"], default=None)


def compare(ours: Sequence[Numbers], peer: Sequence[Numbers]) -> Numbers:
    """Requests a second at the peer's saturation and equal p90 first-token time.

    ``saturation`` is the most that the peer answers a second, ``limit`` its p90 first-token time
    there, ``ours`` the most that we answer with a p90 of at most ``limit``, and ``ratio`` the one
    over the other. What cannot be said is None.
    """
    best = saturation(peer)
    if best is None:
        return {"saturation": None, "limit": None, "ours": None, "ratio": None}
    most = saturation([point for point in ours if point["ttft_p90"] <= best["ttft_p90"]])
    rate = best["requests_per_s"]
    return {
        "saturation": rate,
        "limit": best["ttft_p90"],
        "ours": most["requests_per_s"] if most else None,
        "ratio": most["requests_per_s"] / rate if most else None,
    }
