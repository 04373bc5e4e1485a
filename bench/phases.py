"""The parts of the serving benchmark; each fills its own entry of the results as it goes."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console

from bench.client import Connection, Run, drive
from bench.inprocess import overhead, useful_kv
from bench.report import Numbers, medians, summarize, table
from bench.servers import Remote, Server
from bench.sizes import Size
from bench.static import drive_static
from bench.workloads import ALPACA, SHAREGPT, Lengths, Turn, Workload, drawn, poisson

KV_TOKENS = 32_768
"""Slots of KV memory of every server that is started here."""
CACHED, NEW = 4_000, 60
"""Tokens of the warm prompt."""


@dataclass(slots=True)
class Bench:
    """What the parts share."""

    options: argparse.Namespace
    size: Size
    console: Console
    logs: Path
    results: Numbers
    deadline: float
    """``perf_counter`` at which the time that was given is used up."""
    connections: dict[str, Connection] = field(default_factory=dict)

    @property
    def left(self) -> float:
        return self.deadline - perf_counter()

    def server(self, label: str, *knobs: str, page_size: int = 16) -> Server:
        options = self.options
        common = ["--num-pages", str(KV_TOKENS // page_size + 1), "--page-size", str(page_size)]
        if options.threads:
            common += ["--threads", str(options.threads)]
        if options.load_format:
            common += ["--load-format", options.load_format]
        return Server(label, options.model, [*common, *knobs], self.logs)

    @asynccontextmanager
    async def servers(self) -> AsyncGenerator[None, None]:
        """Connections to a server with and one without the cache, or to the one that was given."""
        async with AsyncExitStack() as stack:
            if self.options.url:
                given = await stack.enter_async_context(Remote(self.options.url))
                self.connections = {"given": await stack.enter_async_context(Connection(given))}
            else:
                self.console.print("starting two servers, with and without the prefix cache")
                pair = [self.server("on"), self.server("off", "--no-prefix-cache")]
                # One after the other: each that came up is ended, whatever becomes of the next.
                for each in pair:
                    await stack.enter_async_context(each)
                    self.connections[each.label] = await stack.enter_async_context(Connection(each))
            for connection in self.connections.values():
                await _warm_up(connection)
            yield
        self.connections = {}


async def within(
    bench: Bench, name: str, share: float, part: Callable[[], Awaitable[None]]
) -> None:
    """Run ``part`` for at most ``share`` of the time that is left; what it has by then stays."""
    limit = bench.left * share
    start = perf_counter()
    outcome = "done"
    try:
        if limit <= 1:
            outcome = "left out: no time"
        else:
            async with asyncio.timeout(limit):
                await part()
    except TimeoutError:
        outcome = f"cut after {limit:.0f} s"
    bench.results["parts"][name] = {"outcome": outcome, "seconds": perf_counter() - start}
    if outcome != "done":
        bench.console.print(f"[yellow]{name}: {outcome}[/]")


async def reuse(bench: Bench, workloads: Sequence[Workload]) -> None:
    """Each workload with and without the cache."""
    await _side_by_side(bench, workloads, bench.connections, bench.results["workloads"])


async def deterministic(bench: Bench, workloads: Sequence[Workload]) -> None:
    """What it costs that a request has the same bits whatever else runs: each workload with and
    without that."""
    async with AsyncExitStack() as stack:
        connections: dict[str, Connection] = {}
        for label, knobs in (("free", ()), ("deterministic", ("--deterministic",))):
            server = await stack.enter_async_context(bench.server(label, *knobs))
            connections[label] = await stack.enter_async_context(Connection(server))
            await _warm_up(connections[label])
        await _side_by_side(bench, workloads, connections, bench.results["deterministic"])


async def _side_by_side(
    bench: Bench,
    workloads: Sequence[Workload],
    connections: dict[str, Connection],
    found: dict[str, Numbers],
) -> None:
    """Each workload on each server, one at a time; every repeat turns the order around."""
    runs: dict[tuple[str, str], list[Numbers]] = {}
    try:
        for repeat in range(bench.size.repeats):
            for workload in workloads:
                order = list(connections.values())
                for connection in order if repeat % 2 else reversed(order):
                    run = await drive(connection, workload, f"{workload.name}-{repeat}")
                    same = runs.setdefault((workload.name, run.server), [])
                    same.append(_checked(bench, run))
                    entry = found.setdefault(workload.name, {"scale": workload.scale})
                    entry[run.server] = medians(same)
    finally:
        for name, entry in found.items():
            sides = [(side, numbers) for side, numbers in entry.items() if side != "scale"]
            bench.console.print(table(f"{name}: {entry['scale']}", sides))


async def warm_and_cold(bench: Bench) -> None:
    """The first token of a prompt whose first 4,000 tokens are cached, against a cold one."""
    connection = bench.connections.get("on") or bench.connections["given"]
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    for repeat in range(bench.size.warm):
        prefix = drawn(("warm", repeat), CACHED)
        for number, kind in enumerate(("cold", "warm", "warm")):
            turn = Turn(prefix + drawn(("new", repeat, number), NEW), 1)
            sample = await connection.ask(turn, f"warm-{repeat}", perf_counter())
            times[kind].append(sample.to_first)
            if number:
                ratio = median(times["warm"]) / median(times["cold"])
                bench.results["warm"] = {"ratio": ratio, "cached": CACHED, "new": NEW} | times


async def arrivals(bench: Bench) -> None:
    """Poisson arrivals at shares of the saturated rate: continuous against static batching."""
    for name, original, factor in (
        ("alpaca", ALPACA, bench.size.alpaca),
        ("sharegpt", SHAREGPT, bench.size.sharegpt),
    ):
        await _arrivals(bench, name, original.scaled(factor), factor)


async def _arrivals(bench: Bench, name: str, lengths: Lengths, factor: float) -> None:
    size = bench.size
    continuous = bench.connections.get("on") or bench.connections["given"]
    static = bench.connections.get("off")
    draw = partial(poisson, lengths, requests=size.arrivals, longest=size.longest, name=name)
    run = await drive(continuous, draw(rate=float("inf")), f"{name}-saturated")
    full = len(run.samples) / run.seconds
    points: list[Numbers] = []
    bench.results["arrivals"][name] = {
        "factor": factor,
        "scale": run.workload.scale,
        "saturated_rate": full,
        "rates": points,
    }
    rows = [("all at once", _checked(bench, run))]
    try:
        for number, share in enumerate(size.rates):
            workload = draw(rate=full * share)
            point: Numbers = {"share": share, "rate": full * share}
            points.append(point)
            kinds = ["continuous"] if static is None else ["continuous", "static"]
            for kind in kinds if number % 2 == 0 else reversed(kinds):
                if kind == "static" and static is not None:
                    run = await drive_static(static, workload, size.static_batch)
                else:
                    run = await drive(continuous, workload, f"{name}-{share}")
                point[kind] = _checked(bench, run)
                rows.append((f"{full * share:.2g}/s {kind}", point[kind]))
    finally:
        bench.console.print(table(f"{name}-like x {factor:g}: {run.workload.scale}", rows))


async def sweep(bench: Bench, knob: str, workload: Workload) -> None:
    """Throughput against the 99th percentile for each value of a knob, on a server of its own."""
    points = bench.results["sweeps"].setdefault(knob, [])
    try:
        for value in bench.size.sweeps[knob]:
            options = [f"--{knob}", str(value)] if knob != "page-size" else []
            page_size = value if knob == "page-size" else 16
            if knob == "max-num-batched-tokens":
                options += ["--max-num-seqs", str(min(64, value))]
            server = bench.server(f"{knob}-{value}", *options, page_size=page_size)
            async with server, Connection(server) as connection:
                await _warm_up(connection)
                run = await drive(connection, workload, "sweep")
            points.append({"value": value} | _checked(bench, run))
            points.sort(key=lambda point: point["value"])
    finally:
        rows = [(str(point["value"]), point) for point in points]
        bench.console.print(table(f"{knob}: {workload.scale}", rows))


async def _warm_up(connection: Connection) -> None:
    await connection.ask(Turn(drawn("warm-up", 40), 4), "warm-up", perf_counter())


def memory(bench: Bench) -> None:
    """The useful share of KV memory at ShareGPT lengths, for each page size."""
    rows = [
        useful_kv(SHAREGPT, requests=bench.size.kv_requests, page_size=page_size)
        for page_size in (1, 4, 8, 16, 32, 64)
    ]
    bench.results["kv"] = {"how": " ".join((useful_kv.__doc__ or "").split()), "by_page": rows}
    shares = ", ".join(f"{row['page_size']}: {row['share']:.2%}" for row in rows)
    bench.console.print(f"useful share of KV memory by page size: {shares}")


def tree(bench: Bench, workload: Workload) -> None:
    """The tree's own time, and what the cache costs where it cannot help."""
    from radixserve.engine.llm import LLM

    settings: dict[str, Any] = {"num_pages": KV_TOKENS // 16 + 1, "threads": bench.options.threads}
    if bench.options.load_format:
        settings["load_format"] = bench.options.load_format
    llm = LLM(bench.options.model, **settings)
    found = overhead(llm, workload, bench.size.tree_repeats, until=perf_counter() + bench.left / 3)
    bench.results["tree"] = found


def judge(results: Numbers) -> list[Numbers]:
    """What was promised, and what the results say of it."""
    page = [
        row["share"] for row in results.get("kv", {}).get("by_page", []) if row["page_size"] == 16
    ]
    warm = results.get("warm", {}).get("ratio")
    tree = results.get("tree", {})
    share, apart, spread = (tree.get(key) for key in ("tree_share", "difference", "spread"))
    useful = page[0] if page else None
    return [
        _requirement("warm first token / cold one", "<= 1/20", warm, lambda ratio: ratio <= 1 / 20),
        _requirement("useful KV slots, page 16", ">= 98 %", useful, lambda part: part >= 0.98),
        _requirement("tree's own time / run", "<= 0.1 %", share, lambda part: part <= 0.001),
        _requirement(
            "cache on / off without reuse, less 1",
            f"within the spread, {spread:.2g}" if spread is not None else "within the spread",
            apart,
            lambda part: abs(part) <= spread,
        ),
    ]


def _requirement(
    name: str, bound: str, measured: float | None, met: Callable[[float], bool]
) -> Numbers:
    found = None if measured is None else met(measured)
    return {"name": name, "bound": bound, "measured": measured, "met": found}


def _checked(bench: Bench, run: Run) -> Numbers:
    if run.errors:
        bench.results["errors"].append(f"{run.workload.name} on {run.server}: {run.errors[0]}")
    return summarize(run)
