"""Whether tenants get their shares, what that costs in reuse, and what the light feel of the heavy.

Simulated with the real scheduler and cache, in three orders of the same queue: ours, first come
first served, and longest prefix first. All draws are seeded: two runs give the same numbers.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from rich.table import Table
from tqdm import tqdm

from bench import plot
from bench.tenants.simulation import (
    BUDGET,
    STEP_SECONDS,
    TOKEN_SECONDS,
    Engine,
    Order,
    first_come,
    longest_prefix,
)
from radixserve.scheduling.account import DECODE_WORK, PREFILL_WORK
from radixserve.tokens import pack

Numbers = dict[str, Any]

ORDERS: dict[str, Order | None] = {
    "radixserve": None,
    "first come": first_come,
    "longest prefix": longest_prefix,
}
FULL_STEP = STEP_SECONDS + TOKEN_SECONDS * BUDGET
WINDOW = 60.0
"""Seconds of simulated time over which shares are compared."""
SAMPLE = 1.0
JAIN = 0.99
LEAST_HITS = 0.95
"""Of the reuse of longest prefix first."""
FULL_STEPS = 2.0
"""That a light tenant's 99th percentile may lose beside a heavy one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One tenant's requests: one of ``prefixes`` common beginnings, a suffix of its own, an answer.
    Lengths in tokens."""

    prefixes: int
    prefix: int
    suffix: int
    output: int

    def prompts(self, tenant: str, seed: int) -> Callable[[], bytes]:
        """Draws one prompt after the other."""
        rng = random.Random(f"{tenant} {seed}")
        stems = [pack(_tokens(rng, self.prefix)) for _ in range(self.prefixes)]
        return lambda: rng.choice(stems) + pack(_tokens(rng, self.suffix))

    @property
    def longest(self) -> int:
        return self.prefix + self.suffix


EQUALS = {
    "chat": Shape(12, 512, 64, 64),
    "documents": Shape(12, 2048, 256, 32),
    "labels": Shape(12, 768, 512, 4),
    "stories": Shape(12, 128, 32, 256),
}
"""Tenants of the same weight that cut their work differently."""
LIGHT = Shape(4, 512, 64, 64)
HEAVY = Shape(24, 512, 256, 64)
LIGHT_RATE = 10.0
"""Requests a second; the heavy one sends ten times as many, more than there is time for."""


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1000, 30_000) for _ in range(count)]


def backlogged(order: Order | None, seconds: float, bar: tqdm[Any]) -> Numbers:
    """Equal tenants, each of which always has 32 requests waiting: service over time, and hits."""
    pages = 6_000
    engine = Engine.of(pages, order)
    prompts = {tenant: shape.prompts(tenant, seed=1) for tenant, shape in EQUALS.items()}
    names = itertools.count()
    waiting: Counter[str] = Counter()
    samples: list[list[float]] = []
    while engine.now < seconds:
        waiting = Counter(each.tenant for each in engine.scheduler.waiting)
        for tenant, shape in EQUALS.items():
            for _ in range(32 - waiting[tenant]):
                engine.ask(f"{next(names)}", prompts[tenant](), shape.output, tenant)
        before = engine.now
        engine.step()
        bar.update(engine.now - before)
        if engine.now >= SAMPLE * len(samples):
            shares = {each.tenant: each.service for each in engine.scheduler.accounts.shares()}
            samples.append([engine.now, *(shares[tenant] for tenant in EQUALS)])
    longest = max(shape.longest for shape in EQUALS.values())
    held = (pages - 1) * engine.scheduler.config.page_size
    bound = 2 * max(PREFILL_WORK * longest, DECODE_WORK * held)
    return {
        **_shares(samples),
        "gap_bound": bound + engine.scheduler.config.max_num_batched_tokens,
        "hit_rate": engine.hit_rate,
        "reuse": _reuse(engine),
        "finished": sum(engine.scheduler.totals.finished.values()),
        "preemptions": engine.scheduler.totals.preemptions,
        "steps": engine.steps,
        "times": [sample[0] for sample in samples],
        "service": dict(zip(EQUALS, np.array(samples)[:, 1:].T.tolist(), strict=True)),
    }


def _reuse(engine: Engine) -> float:
    """Tokens reused, by those in common beginnings of all that have begun: 1 were all of them. So
    an order gains nothing by leaving out those who have little in common."""
    begun = [each for each in engine.seen.values() if each.first is not None]
    return sum(each.cached for each in begun) / sum(EQUALS[each.tenant].prefix for each in begun)


def _shares(samples: list[list[float]]) -> Numbers:
    """Jain's index of each whole window, and how far two tenants are apart over any interval."""
    times = np.array([sample[0] for sample in samples])
    service = np.array([sample[1:] for sample in samples])
    edges = np.searchsorted(times, np.arange(0.0, times[-1] + 1e-9, WINDOW))
    grown = [service[b] - service[a] for a, b in itertools.pairwise(edges)]
    jain = [float(each.sum() ** 2 / (len(each) * (each**2).sum())) for each in grown]
    apart = [
        float(np.ptp(service[:, a] - service[:, b]))
        for a, b in itertools.combinations(range(service.shape[1]), 2)
    ]
    return {"jain": jain, "jain_least": min(jain), "gap": max(apart)}


def beside(order: Order | None, seconds: float, bar: tqdm[Any], *, heavy: bool) -> Numbers:
    """First-token times of a light tenant, alone or beside one that sends ten times as much."""
    engine = Engine.of(30_000, order, seats=256)
    arrivals = _arrivals("light", LIGHT, LIGHT_RATE, seconds)
    if heavy:
        arrivals = sorted(arrivals + _arrivals("heavy", HEAVY, 10 * LIGHT_RATE, seconds))
    place = 0
    while place < len(arrivals) or any(
        each.tenant == "light" and each.first is None for each in engine.seen.values()
    ):
        before = engine.now
        if engine.scheduler.idle:
            engine.now = max(engine.now, arrivals[place][0])
        while place < len(arrivals) and arrivals[place][0] <= engine.now:
            moment, tenant, prompt, output = arrivals[place]
            engine.ask(f"{place}", prompt, output, tenant)
            engine.seen[f"{place}"].asked = moment
            place += 1
        engine.step()
        bar.update(min(engine.now, seconds) - min(before, seconds))
    seen = [each for each in engine.seen.values() if each.tenant == "light"]
    waits = [each.first - each.asked for each in seen if each.first is not None]
    return {
        **{f"ttft_p{p}": float(np.percentile(waits, p)) for p in (50, 90, 99)},
        "ttft": sorted(waits),
        "requests": len(waits),
        "hit_rate": engine.hit_rate,
    }


def _arrivals(
    tenant: str, shape: Shape, rate: float, seconds: float
) -> list[tuple[float, str, bytes, int]]:
    rng = random.Random(f"arrivals {tenant}")
    prompt = shape.prompts(tenant, seed=2)
    found = []
    now = rng.expovariate(rate)
    while now < seconds:
        found.append((now, tenant, prompt(), shape.output))
        now += rng.expovariate(rate)
    return found


def measure(*, quick: bool, data: Path | None = None) -> Numbers:
    """All orders in both situations, and what was promised of ours; needs no recorded ``data``."""
    long, short = (65.0, 5.0) if quick else (190.0, 30.0)
    total = len(ORDERS) * (long + short) + short
    results: Numbers = {"window": WINDOW, "full_step": FULL_STEP, "equals": {}, "light": {}}
    with tqdm(total=total, desc="fairness", unit="s", disable=None) as bar:
        results["light"]["alone"] = beside(None, short, bar, heavy=False)
        for name, order in ORDERS.items():
            bar.set_postfix_str(name)
            results["light"][name] = beside(order, short, bar, heavy=True)
            results["equals"][name] = backlogged(order, long, bar)
    results["requirements"] = requirements(results)
    return results


def requirements(results: Numbers) -> list[Numbers]:
    """Promise, bound, what was measured of our order, and whether it holds."""
    ours, greedy = (results["equals"][name] for name in ("radixserve", "longest prefix"))
    alone, light = (results["light"][name]["ttft_p99"] for name in ("alone", "radixserve"))
    hits = ours["reuse"] / greedy["reuse"]
    lost = (light - alone) / results["full_step"]
    rows = [
        ("Jain's index of the worst window", f">= {JAIN}", ours["jain_least"], 1, JAIN),
        ("largest gap, service", f"<= {ours['gap_bound']:,}", ours["gap"], -1, ours["gap_bound"]),
        ("reuse beside longest prefix first", f">= {LEAST_HITS}", hits, 1, LEAST_HITS),
        ("light p99 beside heavy, full steps more", f"<= {FULL_STEPS:g}", lost, -1, FULL_STEPS),
    ]
    return [
        {"name": name, "bound": bound, "measured": value, "met": bool(sign * value >= sign * most)}
        for name, bound, value, sign, most in rows
    ]


def table(results: Numbers) -> Table:
    """The orders side by side."""
    made = Table(title="Fairness", title_justify="left")
    for name in ("", "Jain, worst window", "largest gap", "hits", "reuse", "light TTFT p50/p99 ms"):
        made.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, light in results["light"].items():
        equal = results["equals"].get(name)
        shares = ("-", "-", "-", "-")
        if equal is not None:
            shares = (
                f"{equal['jain_least']:.4f}",
                f"{equal['gap']:,.0f}",
                f"{equal['hit_rate']:.1%}",
                f"{equal['reuse']:.1%}",
            )
        times = "/".join(f"{1000 * light[f'ttft_p{p}']:,.0f}" for p in (50, 99))
        made.add_row(name, *shares, times)
    return made


PANELS = 3 + len(ORDERS)


def draw(results: Numbers, panels: Sequence[Axes]) -> None:
    """Service over time in each order, then Jain's index, hits, and a light tenant's waits."""
    for axes, (name, numbers) in zip(panels, results["equals"].items(), strict=False):
        plot.style(axes, title=f"service, {name}", x="simulated s", y="million")
        for tenant, service in numbers["service"].items():
            axes.plot(numbers["times"], np.array(service) / 1e6, linewidth=1.2, label=tenant)
        axes.legend(fontsize=7, frameon=False)
    jain, hits, waits = panels[len(ORDERS) :]
    plot.style(jain, title="Jain's index", x="window of 60 s")
    for name, numbers in results["equals"].items():
        jain.plot(range(1, len(numbers["jain"]) + 1), numbers["jain"], marker="o", markersize=3,
                  linewidth=1.2, label=name)  # fmt: skip
    jain.set_ylim(0, 1.03)
    jain.xaxis.get_major_locator().set_params(integer=True)
    jain.legend(fontsize=7, frameon=False)
    plot.style(hits, title="reuse", y="share of what is common")
    rates = {name: numbers["reuse"] for name, numbers in results["equals"].items()}
    hits.bar(list(rates), list(rates.values()), color=plot.COLOURS[: len(rates)])
    plot.style(waits, title="a light tenant's first token beside a heavy one", x="s", y="share")
    for name, numbers in results["light"].items():
        ttft = numbers["ttft"]
        waits.plot(ttft, np.arange(1, len(ttft) + 1) / len(ttft), linewidth=1.2, label=name)
    waits.set_xscale("log")
    waits.legend(fontsize=7, frameon=False)
