"""What cache policies come to on recorded traffic, between LRU and the optimum.

    python -m bench.policy --data DIR [--requests 10000] [--out bench/results]

``DIR`` holds ``agents/coding_sessions.jsonl.gz`` and ``mooncake/``. Coding sessions are played in a
closed loop, so many open at a time; constants were chosen on the even ones, and what counts is what
comes of the odd ones. The optimum is Belady's with bypass. No model runs; but for the times, two
runs give the same numbers. Results are written as JSON and PNG, also after Ctrl-C.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench.machine import machine
from bench.policy import cost, rules
from bench.policy.figure import draw
from bench.report import verdicts

Numbers = dict[str, Any]

HINTED = (0.35, 0.45, 0.28)
"""Of the gap, at least, in ``rules.CASES`` with what clients say."""
ALONE = (0.20, 0.25, 0.12)
"""And without."""
LOSS = 0.5
"""Percentage points of hits that the adaptive rule may lose to LRU."""
MICROSECONDS = 5.0
"""That it may add to an eviction."""
TOO_LONG = 300
"""Seconds: who keeps everything for so long hits less than LRU."""


def requirements(results: Numbers) -> list[Numbers]:
    """What was promised, and whether it holds for what was measured."""
    met = [
        entry
        for index, each in enumerate(results["coding"].get("odd", ()))
        for entry in _of_case(each, HINTED[index], ALONE[index])
    ]
    for name, curve in results["keeping"].items():
        last = curve["hits"][curve["seconds"].index(TOO_LONG)]
        below = 100 * (last - curve["lru"])
        met.append(_entry(f"kept {TOO_LONG} s, {name}", "< 0 points", below, below < 0))
    for name, over in results["sizes"].items():
        for where in ("paper", "served"):
            worst = min(rules.points(over, where))
            met.append(
                _entry(f"worst of {name}, {where}", f">= -{LOSS} points", worst, worst >= -LOSS)
            )
    if results.get("cost"):
        found = results["cost"]["microseconds"]
        more = found["adaptive"] - found["lru"]
        met.append(
            _entry("added to an eviction", f"<= {MICROSECONDS} us", more, more <= MICROSECONDS)
        )
    return met


def _of_case(each: Numbers, hinted: float, alone: float) -> list[Numbers]:
    name = f"{each['opened']} open at {each['tokens'] / 1e6:g} M"
    found = (
        ("with hints", hinted, each["closed"]["hints"]),
        ("without hints", alone, each["closed"]["adaptive"]),
        ("with hints, served", hinted, each["closed_served"]["hints"]),
        ("without hints, served", alone, each["closed_served"]["adaptive"]),
    )
    return [
        _entry(f"{name}, {what}", f">= {bound:.0%} of the gap", share, share >= bound)
        for what, bound, share in found
    ]


def _entry(name: str, bound: str, measured: float, met: bool) -> Numbers:
    return {"name": name, "bound": bound, "measured": measured, "met": met}


def table(results: Numbers) -> Table:
    """Hits and what is closed of the gap, both halves."""
    made = Table(title="Coding sessions: hits in % (closed of the gap)", title_justify="left")
    cases = [(half, each) for half, found in results["coding"].items() for each in found]
    made.add_column("", no_wrap=True)
    for half, each in cases:
        made.add_column(f"{half}, {each['opened']} at {each['tokens'] / 1e6:g} M", justify="right")
    for title, hits, shares in (
        ("on paper", "hits", ("closed",)),
        ("served", "served", ("closed_served", "closed_running")),
    ):
        for name in cases[0][1][hits] if cases else ():
            cells = (
                _share(each[hits][name], [each[key].get(name) for key in shares])
                for _, each in cases
            )
            made.add_row(f"{title}: {name}", *cells)
    return made


def _share(hits: float, closed: list[float | None]) -> str:
    shares = ", ".join(f"{100 * each:.0f}" for each in closed if each is not None)
    return f"{100 * hits:.1f}" + (f" ({shares})" if shares else "")


def main(
    data: Annotated[Path, typer.Option(help="Recorded traffic.", exists=True, file_okay=False)],
    requests: Annotated[int, typer.Option(help="Of each traffic of coding sessions.", min=1)] = (
        10_000
    ),
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("bench/results"),
) -> None:
    """Measure; print tables and, as JSON in the last line, what was promised and what holds."""
    console = Console(stderr=True)
    results: Numbers = {
        "status": "stopped",
        "machine": machine(),
        "requests": requests,
        "coding": {},
        "keeping": {},
        "sizes": {},
    }
    start = perf_counter()
    try:
        results["cost"] = cost.measure()
        with tqdm(total=rules.steps(), desc="policies", unit="case", disable=None) as bar:
            rules.measure(data, requests, results, bar)
        results["status"] = "complete"
    except KeyboardInterrupt:
        console.print("stopped; what was measured so far is kept")
    results["seconds"] = perf_counter() - start
    results["requirements"] = requirements(results)
    console.print(table(results))
    console.print(verdicts(results["requirements"]))
    out.mkdir(parents=True, exist_ok=True)
    (out / "policy.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(results, out / "policy.png")
    met = {each["name"]: each["met"] for each in results["requirements"]}
    sys.stdout.write(json.dumps(met) + "\n")


if __name__ == "__main__":
    typer.run(main)
