"""Numbers of runs, tables for people, a JSON file and a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.client import Run, Sample
from bench.workloads import shared_tokens

Numbers = dict[str, Any]

PERCENTILES = (50, 90, 99)
TIMES: dict[str, Callable[[Sample], float | None]] = {
    "ttft": lambda sample: sample.to_first,
    "tpot": lambda sample: sample.per_token,
    "e2e": lambda sample: sample.end_to_end,
}


def summarize(run: Run) -> Numbers:
    """One run in numbers: times in seconds, throughput a second, rates from 0 to 1."""
    numbers: Numbers = {
        "server": run.server,
        "requests": len(run.samples),
        "errors": len(run.errors),
    }
    for name, value in TIMES.items():
        values = [seconds for each in run.samples if (seconds := value(each)) is not None]
        for percent in PERCENTILES:
            numbers[f"{name}_p{percent}"] = (
                float(np.percentile(values, percent)) if values else None
            )
    output = sum(each.output for each in run.samples)
    prompt = sum(each.prompt for each in run.samples)
    numbers |= {
        "normalized": fmean(each.normalized for each in run.samples) if run.samples else None,
        "seconds": run.seconds,
        "requests_per_s": len(run.samples) / run.seconds if run.seconds else None,
        "output_tokens_per_s": output / run.seconds if run.seconds else None,
        "total_tokens_per_s": (prompt + output) / run.seconds if run.seconds else None,
    }
    sent = sum(map(len, run.prompts))
    counters = run.counters
    # A server without counters is believed what its answers say.
    cached = counters.get("prompt_tokens_cached", sum(each.cached for each in run.samples))
    queried = counters.get("prompt_tokens", prompt)
    numbers |= {
        "hit_rate": cached / queried if queried else None,
        "hit_rate_theory": sum(shared_tokens(run.prompts)) / sent if sent else None,
        "computed_tokens": counters.get("computed_tokens"),
        "preemptions": counters.get("num_preemptions"),
        "evicted_pages": counters.get("evicted_pages"),
    }
    return numbers


def medians(runs: Sequence[Numbers]) -> Numbers:
    """Of each number, the median over ``runs``; of words, the first."""
    if not runs:
        return {}
    merged: Numbers = {"repeats": len(runs)}
    for name, first in runs[0].items():
        values = [run[name] for run in runs if isinstance(run.get(name), int | float)]
        merged[name] = median(values) if values else first
    return merged


def table(title: str, rows: Sequence[tuple[str, Numbers]]) -> Table:
    """Runs side by side."""
    columns: dict[str, Callable[[Numbers], str]] = {
        "TTFT p50/90/99 s": lambda n: _three(n, "ttft"),
        "TPOT s": lambda n: _three(n, "tpot"),
        "end to end s": lambda n: _three(n, "e2e"),
        "s/token": lambda n: _number(n.get("normalized")),
        "req/s": lambda n: _number(n.get("requests_per_s")),
        "tok/s": lambda n: _number(n.get("output_tokens_per_s")),
        "hits": lambda n: _percent(n.get("hit_rate")),
        "theory": lambda n: _percent(n.get("hit_rate_theory")),
        "computed": lambda n: _number(n.get("computed_tokens")),
        "preempted": lambda n: _number(n.get("preemptions")),
    }
    made = Table(title=title, title_justify="left")
    made.add_column("")
    for name in columns:
        made.add_column(name, justify="right", no_wrap=True)
    for name, numbers in rows:
        made.add_row(name, *(show(numbers) for show in columns.values()))
    return made


def verdicts(requirements: Sequence[Numbers]) -> Table:
    """What was promised and what came of it."""
    made = Table(title="Requirements", title_justify="left")
    for name in ("", "bound", "measured", "met"):
        made.add_column(name)
    words = {True: "[green]yes[/]", False: "[red]no[/]", None: "not measured"}
    for each in requirements:
        made.add_row(each["name"], each["bound"], _exact(each["measured"]), words[each["met"]])
    return made


def write(results: Numbers, out: Path, console: Console) -> None:
    """``serve.json`` and ``serve.png`` in ``out``. A missing plotting library costs the picture."""
    out.mkdir(parents=True, exist_ok=True)
    name = "serve-quick" if results.get("quick") else "serve"
    path = out / f"{name}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"results: {path}")
    try:
        from bench.figure import draw
    except ImportError as error:
        console.print(f"[yellow]no picture:[/] {error}; pip install matplotlib")
        return
    draw(results, out / f"{name}.png")
    console.print(f"picture: {out / name}.png")


def _three(numbers: Numbers, name: str) -> str:
    return "/".join(_number(numbers.get(f"{name}_p{percent}")) for percent in PERCENTILES)


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2g}"


def _exact(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
