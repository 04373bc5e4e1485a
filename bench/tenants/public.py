"""How much of the reuse is left when tenants are kept apart, but for public system prompts.

Sessions of coding agents, which share the system prompt and the tools, dealt out to eight tenants.
The same requests run as one tenant, as eight that are kept apart, and as eight to whom the common
beginnings are public. Where pages are few, tenants are also kept from evicting each other, which
costs hits of its own: sizes from too few pages to enough are shown, and the middle one is judged.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from rich.table import Table
from tqdm import tqdm

from bench import plot
from bench.tenants.simulation import Engine
from bench.traces import agents
from bench.workloads import Workload, shared_tokens
from radixserve.tokens import pack

Numbers = dict[str, Any]

PAGES = (6_000, 12_000, 24_000)
ONE, APART, PUBLIC = "one tenant", "kept apart", "kept apart, public prompts"
TENANTS = 8
JUDGED = 1
"""By its place among the numbers of pages."""
LEAST = 0.9
"""Of one tenant's hits."""
PANELS = 1


def replay(workload: Workload, engine: Engine, bar: tqdm[Any], *, apart: bool) -> float:
    """The hit rate of all conversations, each turn asked after the answer to the one before."""
    due = [(each.start, number, 0) for number, each in enumerate(workload.conversations)]
    heapq.heapify(due)
    while due or not engine.scheduler.idle:
        if engine.scheduler.idle:
            engine.now = max(engine.now, due[0][0])
        while due and due[0][0] <= engine.now:
            _, number, place = heapq.heappop(due)
            turn = workload.conversations[number].turns[place]
            tenant = f"tenant-{number % TENANTS}" if apart else "all"
            engine.ask(f"{number} {place}", pack(turn.prompt), turn.output, tenant)
        for name in engine.step():
            bar.update()
            number, place = map(int, name.split())
            turns = workload.conversations[number].turns
            if place + 1 < len(turns):
                moment = engine.now + turns[place + 1].pause
                heapq.heappush(due, (moment, number, place + 1))
    return engine.hit_rate


def measure(*, quick: bool, data: Path | None) -> Numbers:
    """The three ways, and what was promised of the last."""
    workload = agents(
        data, sessions=6 if quick else 48, requests=6, block=16, longest=20_000, pace=0.02
    )
    prefixes = common_beginnings([each.turns[0].prompt for each in workload.conversations])
    rates: dict[str, list[float]] = {ONE: [], APART: [], PUBLIC: []}
    total = len(PAGES) * len(rates) * len(workload.turns)
    with tqdm(total=total, desc="public", unit="request", disable=None) as bar:
        for pages in PAGES:
            for name, found in rates.items():
                engine = Engine.of(pages)
                if name == PUBLIC:
                    engine.scheduler.cache.set_public([pack(each) for each in prefixes])
                found.append(replay(workload, engine, bar, apart=name != ONE))
    results: Numbers = {
        "workload": workload.scale,
        "common": [len(each) for each in prefixes],
        "hit_rates": rates,
    }
    return results | {"requirements": requirements(results)}


def common_beginnings(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """What an operator would name: each beginning that two sessions have in common."""
    shared = zip(prompts, shared_tokens(prompts), strict=True)
    found = {tuple(prompt[:length]) for prompt, length in shared if length}
    return [list(each) for each in sorted(found, key=len)]


def requirements(results: Numbers) -> list[Numbers]:
    """What is left of one tenant's hits."""
    name = "hits with public prompts, by one tenant's"
    rates = results["hit_rates"]
    left = rates[PUBLIC][JUDGED] / rates[ONE][JUDGED]
    return [{"name": name, "bound": f">= {LEAST}", "measured": left, "met": left >= LEAST}]


def table(results: Numbers) -> Table:
    """The three ways."""
    made = Table(title=f"Hits by pages, {results['workload']}", title_justify="left")
    made.add_column("", no_wrap=True)
    for pages in PAGES:
        made.add_column(f"{pages:,}", justify="right", no_wrap=True)
    for name, rates in results["hit_rates"].items():
        made.add_row(name, *(f"{rate:.1%}" for rate in rates))
    return made


def draw(results: Numbers, panels: Sequence[Axes]) -> None:
    """The hit rates over the number of pages."""
    (axes,) = panels
    plot.style(axes, title="agents, hit rate", x="pages")
    for name, rates in results["hit_rates"].items():
        axes.plot(PAGES, rates, marker="o", markersize=3, linewidth=1.2, label=name)
    axes.set_ylim(0, 1)
    axes.legend(fontsize=7, frameon=False)
