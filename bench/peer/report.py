"""Medians, ratios, the table, and what is written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.peer import mains
from bench.peer.cases import OURS
from bench.peer.roster import APART, BY_NAME

Numbers = dict[str, Any]


def finish(results: Numbers) -> None:
    """Add to each case ``median``, ``best`` (the best of the others) and ``ratio``.

    A ratio is radixserve's speed over the best other's, so above 1 radixserve is faster, in time
    as in throughput; ``ratio_16`` is against the best of those whose KV takes 16 bits. None where
    one of the two was not measured.
    """
    for entry in results["cases"].values():
        medians = {peer: median(each) for peer, each in entry["samples"].items() if each}
        entry["median"] = medians
        entry["best"], entry["ratio"] = _against(medians, entry["unit"], medians)
        wide = [peer for peer in medians if BY_NAME[peer].kv_bits == 16]
        entry["best_16"], entry["ratio_16"] = _against(medians, entry["unit"], wide)


def table(results: Numbers) -> Table:
    """One row a case: the median of each peer, and how radixserve compares with the best."""
    peers = list(results["peers"])
    made = Table(title="radixserve and its peers", title_justify="left")
    made.add_column("")
    for peer in peers:
        made.add_column(BY_NAME[peer].title.replace(", ", ",\n"), justify="right", no_wrap=True)
    made.add_column("best other", no_wrap=True)
    made.add_column("radixserve /\nbest", justify="right")
    made.add_column("/ best with\nKV 16 bit", justify="right")
    for entry in results["cases"].values():
        made.add_row(
            f"{entry['title']}, {entry['unit']}",
            *(_number(entry["median"].get(peer)) for peer in peers),
            BY_NAME[entry["best"]].title if entry["best"] else "-",
            _coloured(entry["ratio"]),
            _coloured(entry["ratio_16"]),
        )
    return made


def notes(results: Numbers) -> list[str]:
    """What a reader of the table should know: who is missing, who disagrees, our memory."""
    lines = [
        f"{BY_NAME[name].title} was left out: {peer['error']}"
        for name, peer in results["peers"].items()
        if peer["error"]
    ]
    shares: dict[str, list[float]] = {}
    for entry in results["agreement"].values():
        for peer, share in entry.items():
            if peer != OURS:
                shares.setdefault(peer, []).append(share)
    if shares:
        said = ", ".join(f"{peer} {sum(s) / len(s):.0%}" for peer, s in shares.items())
        lines.append(f"first tokens that are radixserve's: {said}")
    memory = results.get("memory")
    if memory:
        mega = {name: f"{size / 1e6:,.0f} MB" for name, size in memory.items()}
        lines.append(
            f"radixserve holds {mega['beyond']} beyond its weights ({mega['weights']}) "
            f"and its KV pool ({mega['kv_pool']})"
        )
    return lines


def write(results: Numbers, out: Path, console: Console) -> None:
    """``peers.json`` and ``peers.png`` in ``out``."""
    path = out / f"{'peers-quick' if results.get('quick') else 'peers'}.json"
    mains.write(results, path, "bench.peer.figure", console)


def speeds(entry: Numbers) -> dict[str, float]:
    """The speed of each peer over that of the fastest."""
    medians = entry["median"]
    fast = {peer: _speed(value, entry["unit"]) for peer, value in medians.items()}
    most = max(fast.values(), default=1.0)
    return {peer: value / most for peer, value in fast.items()}


def _against(
    medians: dict[str, float], unit: str, peers: Iterable[str]
) -> tuple[str | None, float | None]:
    fast = {peer: _speed(medians[peer], unit) for peer in peers if peer not in (OURS, APART.name)}
    if not fast:
        return None, None
    best = max(fast, key=lambda peer: fast[peer])
    return best, _speed(medians[OURS], unit) / fast[best] if OURS in medians else None


def _speed(value: float, unit: str) -> float:
    return value if unit == "tok/s" else 1 / value


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _coloured(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"[{'green' if ratio >= 1 else 'red'}]{ratio:.2f}x[/]"
