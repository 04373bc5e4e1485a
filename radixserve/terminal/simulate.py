"""``radixserve simulate``: what caches of several sizes would have reused of recorded prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tqdm import tqdm

from radixserve.errors import ConfigError
from radixserve.terminal.sizes import finite

if TYPE_CHECKING:
    from radixserve.simulation.trace import Trace

SERVED = "as served"
"""The cache of ``radixserve serve`` itself, with what it does by default."""
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Sizes to try where none are given, of all distinct blocks."""

Curves = dict[str, list[float]]


def simulate(
    trace: Annotated[
        Path,
        typer.Argument(help="A trace, one request a line, in the form of Mooncake's (.gz too)."),
    ],
    tokens: Annotated[
        str | None,
        typer.Option(
            help="Sizes of the cache in tokens, as in 800k,3M. Default: shares of what the trace "
            "has."
        ),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a block, a multiple of the trace's. Default: that."),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            callback=finite,
            min=0,
            help="Seconds for which nothing goes for a newcomer: one more policy.",
        ),
    ] = 0.0,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves as PNG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The curves as JSON.")] = False,
) -> None:
    """Plan a cache on one's own traffic: hit rates over sizes, beside the best that can be.

    Needs no model. "As served" is the cache of radixserve serve, one request at a time: a prompt
    that is larger than the cache is not served there, and reuses nothing. A policy cannot know what
    comes next; "optimum" does, and shows what is left to gain. A trace has ids of blocks, no text.
    """
    from radixserve.simulation.trace import read

    if plot is not None and (plot.is_dir() or not plot.parent.is_dir()):
        raise ConfigError(f"--plot: {plot} cannot be written: name a file in a folder that exists.")
    console = Console(stderr=True, highlight=False)
    size = trace.stat().st_size if trace.is_file() else None
    with tqdm(total=size, unit="B", unit_scale=True, desc="reading", disable=None) as bar:
        found = read(trace, block_size=block_size, progress=bar.update)
    if found.skipped:
        lines = "line is" if found.skipped == 1 else "lines are"
        console.print(
            f"[yellow]{found.skipped} {lines} left out[/]; the first: {escape(found.fault)}"
        )
    if found.cut:
        console.print(
            f"[yellow]no more can be kept:[/] line {found.cut} and what follows is not counted"
        )
    sizes = _sizes(tokens, found)
    curves = _curves(found, sizes, grace)
    if as_json:
        typer.echo(json.dumps({"tokens": sizes, "hit_rates": curves}))
    else:
        Console(highlight=False).print(_table(found, sizes, curves))
    if plot is not None:
        _draw(plot, sizes, curves, console)


def _sizes(tokens: str | None, trace: Trace) -> list[int]:
    if tokens is None:
        return sorted({max(trace.block_size, round(share * trace.distinct)) for share in SHARES})
    sizes = [_count(each.strip()) for each in tokens.split(",")]
    if short := [each for each in sizes if each < trace.block_size]:
        raise ConfigError(
            f"--tokens: a cache of {short[0]} tokens has no room for one block of "
            f"{trace.block_size}."
        )
    return sorted(set(sizes))


def _count(text: str) -> int:
    found = re.fullmatch(r"(\d{1,15}(?:\.\d*)?)([kmg]?)", text.lower(), re.ASCII)
    if found is None:
        raise ConfigError(
            f"--tokens: {text[:40]!r} is no number of tokens; give some like 800k,3M."
        )
    return round(float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[found[2]])


def _curves(trace: Trace, sizes: list[int], grace: float) -> Curves:
    from radixserve.simulation.replay import Plan, least_recently_used, optimum, replay
    from radixserve.simulation.served import serve

    plan = Plan.of(trace)
    least, best = least_recently_used(plan), optimum(plan)
    most = max(1, trace.distinct // trace.block_size)
    policies: dict[str, Callable[[int], float]] = {
        "least recently used": lambda blocks: replay(plan, least, blocks),
        # A cache with room for all is as good as a larger one, and takes less memory.
        SERVED: lambda blocks: serve(trace, min(blocks, most), adaptive=True),
        "optimum": lambda blocks: replay(plan, best, blocks),
    }
    if grace:
        policies[f"{grace:g} s of grace"] = lambda blocks: replay(plan, least, blocks, grace=grace)
    curves: Curves = {name: [] for name in policies}
    with tqdm(total=len(sizes) * len(policies), desc="replaying", disable=None) as bar:
        for size in sizes:
            for name, policy in policies.items():
                curves[name].append(policy(size // trace.block_size))
                bar.update()
    return curves


def _table(trace: Trace, sizes: list[int], curves: Curves) -> Table:
    title = (
        f"{len(trace.calls):,} requests, {trace.distinct:,} distinct tokens in blocks of "
        f"{trace.block_size}: share of prompt tokens reused"
    )
    made = Table(title=title, title_justify="left")
    made.add_column("cache, tokens", justify="right")
    for name in curves:
        made.add_column(name, justify="right")
    for row, size in enumerate(sizes):
        made.add_row(f"{size:,}", *(f"{rates[row]:.1%}" for rates in curves.values()))
    return made


def _draw(path: Path, sizes: list[int], curves: Curves, console: Console) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        console.print('[yellow]no picture:[/] it needs pip install "radixserve\\[bench]"')
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="cache, tokens", ylabel="prompt tokens reused", xscale="log")
    for name, rates in curves.items():
        axes.plot(sizes, rates, marker="o", markersize=3, label=name)
    axes.set_ylim(0, 1)
    axes.grid(visible=True, color="#e8e8e8")
    axes.legend(frameon=False)
    try:
        figure.savefig(path, dpi=110, format="png")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error
