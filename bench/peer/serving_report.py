"""Serving over HTTP: the comparison, and tables for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from bench.peer.cases import OURS
from bench.peer.equal import compare
from bench.peer.served import BY_NAME

Numbers = dict[str, Any]


def finish(results: Numbers) -> None:
    """Add to each workload ``beside``: for each peer, what ``bench.peer.equal.compare`` says."""
    for entry in results["workloads"].values():
        rates = entry["rates"]
        entry["beside"] = {
            peer: compare(measured(rates.get(OURS, [])), measured(points))
            for peer, points in rates.items()
            if peer != OURS
        }


def table(name: str, entry: Numbers) -> Table:
    """One row a server and rate."""
    made = Table(title=f"{name}: {entry['scale']}", title_justify="left")
    for column in ("", "offered/s", "TTFT p50", "p90", "TPOT p50", "p90", "req/s"):
        made.add_column(column, justify="right" if column else "left")
    for column in ("reused", "possible"):
        made.add_column(column, justify="right")
    for peer, numbers in entry["closed"].items():
        if numbers:
            made.add_row(BY_NAME[peer].title, "closed loop", *_cells(numbers))
        for point in measured(entry["rates"].get(peer, [])):
            made.add_row("", f"{point['rate']:.3g}", *_cells(point))
    return made


def verdict(results: Numbers) -> Table:
    """One row a workload and peer."""
    made = Table(title="At each peer's saturation and equal p90 first-token time")
    for column in ("workload", "peer"):
        made.add_column(column)
    for column in ("its req/s", "its p90 TTFT", "radixserve req/s", "ratio", "closed loops"):
        made.add_column(column, justify="right")
    for name, entry in results["workloads"].items():
        for peer, found in entry["beside"].items():
            closed = [entry["closed"].get(each, {}).get("requests_per_s") for each in (OURS, peer)]
            made.add_row(
                name,
                BY_NAME[peer].title,
                *(_number(found[key]) for key in ("saturation", "limit", "ours")),
                _times(found["ratio"]),
                _times(closed[0] / closed[1] if all(closed) else None),
            )
    return made


def measured(points: list[Numbers]) -> list[Numbers]:
    """Those of which there is at least one run."""
    return [point for point in points if point.get("runs")]


def _cells(numbers: Numbers) -> list[str]:
    names = ("ttft_p50", "ttft_p90", "tpot_p50", "tpot_p90", "requests_per_s")
    shares = (f"{numbers[name] or 0:.0%}" for name in ("hit_rate", "hit_rate_theory"))
    return [*(_number(numbers[name]) for name in names), *shares]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _times(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"[{'green' if ratio >= 1 else 'red'}]{ratio:.2f}x[/]"
