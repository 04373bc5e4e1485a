"""What the order of one tenant's queue is worth on recorded chat traffic, more than can be served.

The trace of ``bench.traces`` against the simulated engine: first come first served, our order with
more and fewer passes, and longest prefix first without any bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from rich.table import Table
from tqdm import tqdm

from bench import plot
from bench.tenants.simulation import Engine, longest_prefix
from bench.traces import chat_trace
from bench.workloads import Workload
from radixserve.tokens import pack

Numbers = dict[str, Any]

PASSES = (0, 8, 64)
UNBOUNDED = "longest prefix"
PAGES = (1500, 4000)
PANELS = 2


def replay(workload: Workload, engine: Engine, bar: tqdm[Any]) -> Numbers:
    """Single-turn conversations at their times."""
    arrivals = sorted(workload.conversations, key=lambda each: each.start)
    place = 0
    while place < len(arrivals) or not engine.scheduler.idle:
        if engine.scheduler.idle:
            engine.now = max(engine.now, arrivals[place].start)
        while place < len(arrivals) and arrivals[place].start <= engine.now:
            (turn,) = arrivals[place].turns
            engine.ask(f"{place}", pack(turn.prompt), turn.output)
            engine.seen[f"{place}"].asked = arrivals[place].start
            place += 1
        bar.update(len(engine.step()))
    waits = [each.first - each.asked for each in engine.seen.values() if each.first is not None]
    return {
        "hit_rate": engine.hit_rate,
        "ttft_mean": fmean(waits),
        "ttft_p50": float(np.percentile(waits, 50)),
        "ttft_p99": float(np.percentile(waits, 99)),
        "seconds": engine.now,
        "computed": engine.scheduler.totals.computed_tokens,
        "preemptions": engine.scheduler.totals.preemptions,
    }


def measure(*, quick: bool, data: Path | None) -> Numbers:
    """Every order with every number of pages."""
    requests = 300 if quick else 1500
    workload = chat_trace(data, requests=requests, block=64, longest=4000, rate=40.0)
    orders = {f"{passes} passes": passes for passes in PASSES}
    found: dict[str, Numbers] = {}
    total = len(workload.turns) * len(PAGES) * (len(orders) + 1)
    with tqdm(total=total, desc="replay", unit="request", disable=None) as bar:
        for pages in PAGES:
            rows = {
                name: replay(workload, Engine.of(pages, passes=passes), bar)
                for name, passes in orders.items()
            }
            rows[UNBOUNDED] = replay(workload, Engine.of(pages, longest_prefix), bar)
            found[f"{pages}"] = rows
    return {"workload": workload.scale, "pages": found, "requirements": []}


def table(results: Numbers) -> Table:
    """The orders, one under the other."""
    made = Table(title=f"One tenant's order, {results['workload']}", title_justify="left")
    for name in ("pages", "order", "hits", "TTFT mean/p50/p99 s", "all done s", "computed"):
        made.add_column(name, justify="right", no_wrap=True)
    for pages, rows in results["pages"].items():
        for name, each in rows.items():
            times = "/".join(f"{each[f'ttft_{what}']:.2f}" for what in ("mean", "p50", "p99"))
            made.add_row(
                pages, name, f"{each['hit_rate']:.1%}", times, f"{each['seconds']:.1f}",
                f"{each['computed']:,}",
            )  # fmt: skip
    return made


def draw(results: Numbers, panels: Sequence[Axes]) -> None:
    """Hits, and the mean first-token time."""
    titles = {"hit_rate": ("chat trace, hit rate", ""), "ttft_mean": ("mean first token", "s")}
    for axes, (what, (title, unit)) in zip(panels, titles.items(), strict=True):
        plot.style(axes, title=title, y=unit)
        for number, (pages, rows) in enumerate(results["pages"].items()):
            places = np.arange(len(rows)) + 0.4 * number
            axes.bar(places, [each[what] for each in rows.values()], 0.4, label=f"{pages} pages")
            axes.set_xticks(np.arange(len(rows)) + 0.2, list(rows), fontsize=6)
        axes.legend(fontsize=7, frameon=False)
