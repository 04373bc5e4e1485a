"""Which rate a server keeps up with, and what another does at the same first-token time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import linear_regression
from typing import Any

from bench.client import Sample

Numbers = dict[str, Any]

KEEPS = 0.95
"""Of the offered rate, what has to be completed."""


def completed(samples: Iterable[Sample]) -> float | None:
    """The rate at which answers end over the rate at which requests come; 1 is keeping up.

    It is one over the slope of the moments of completion over those of arrival, by least squares:
    a time to answer that stays the same does not count, one that grows, as where a queue builds
    up, does. The first quarter of the requests is left out: the cache fills meanwhile. None of
    fewer than six requests after that.
    """
    ordered = sorted(samples, key=lambda sample: sample.sent)
    ordered = ordered[len(ordered) // 4 :]
    if len(ordered) < 6:
        return None
    slope = linear_regression([s.sent for s in ordered], [s.last for s in ordered]).slope
    # Where later ones end before earlier ones nothing can have queued up.
    return 1 / slope if slope > 0 else 1.0


def keeps_up(point: Numbers) -> bool:
    """Whether a swept rate was kept up with."""
    return point.get("completed") is not None and point["completed"] >= KEEPS


def saturation(points: Sequence[Numbers]) -> Numbers | None:
    """The highest swept rate that is kept up with, as are all swept rates below it."""
    best = None
    for point in sorted(points, key=lambda point: point["rate"]):
        if not keeps_up(point):
            break
        best = point
    return best


def compare(ours: Sequence[Numbers], peer: Sequence[Numbers]) -> Numbers:
    """Requests a second at the peer's saturation and equal p90 first-token time.

    ``limit`` is the p90 first-token time of the peer at its ``saturation`` (requests a second),
    ``ours`` our highest swept rate that is kept up with and has a p90 of at most ``limit``, and
    ``ratio`` the one rate over the other. What cannot be said is None.
    """
    best = saturation(peer)
    if best is None:
        return {"saturation": None, "limit": None, "ours": None, "ratio": None}
    rates = [
        point["rate"] for point in ours if keeps_up(point) and point["ttft_p90"] <= best["ttft_p90"]
    ]
    most = max(rates, default=None)
    return {
        "saturation": best["rate"],
        "limit": best["ttft_p90"],
        "ours": most,
        "ratio": most / best["rate"] if most else None,
    }
