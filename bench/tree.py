"""What the tree and the scheduler cost, beside what they may cost, and a long random life of them.

    python -m bench.tree [--quick] [--out bench/results] [--operations 1000000]

One thread, many samples a point. The median is what counts; the best is what a quiet machine would
show. Results are written as JSON and PNG, also after Ctrl-C.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer
from tqdm import tqdm

from bench import plot
from bench.costs import STUDIES, Samples, Study
from bench.machine import machine
from tests.cache.oracle import EPISODE, run


def point(study: Study, size: int, samples: Samples, first: float | None) -> dict[str, Any]:
    """Median and best of each series; the limit and whether the first series holds it."""
    median = {series: statistics.median(values) for series, values in samples.items()}
    limit = study.limit(size) if study.limit else None
    if study.times_first and first is not None:
        limit = study.times_first * first
    measured = next(iter(median.values()))
    return {
        "size": size,
        "median": median,
        "best": {series: min(values) for series, values in samples.items()},
        "limit": limit,
        "met": None if limit is None else measured <= limit,
    }


def run_studies(results: dict[str, Any], *, quick: bool) -> None:
    work = [(study, size) for study in STUDIES for size in study.sizes]
    with tqdm(work, desc="costs", unit="point", disable=None) as bar:
        for study, size in bar:
            bar.set_postfix_str(f"{study.name}, {size:,} {study.x}")
            samples = study.measure(size, 30 if quick else 200)
            each = results["studies"].setdefault(
                study.name, {"x": study.x, "unit": study.unit, "points": []}
            )
            points = each["points"]
            first = next(iter(points[0]["median"].values())) if points else None
            points.append(point(study, size, samples, first))


def run_oracle(results: dict[str, Any], operations: int) -> None:
    """Random operations beside an oracle, with a full check after each; a fault raises."""
    seen: Counter[str] = Counter()
    start = perf_counter()
    with tqdm(total=operations, desc="random operations", unit="op", disable=None) as bar:
        for first in range(0, operations, EPISODE):
            count = min(EPISODE, operations - first)
            seen += run(count, seed=first)
            bar.update(count)
            done, seconds = first + count, perf_counter() - start
            results["oracle"] = {"operations": done, "seconds": seconds, "seen": dict(seen)}


def draw(results: dict[str, Any], path: Path) -> Path:
    """One small panel a study, and one for what the random operations met."""
    studies, oracle = results["studies"], results["oracle"]
    figure, axes = plot.panels(len(studies) + bool(oracle), title=str(results["machine"]["cpu"]))
    for panel, (name, study) in zip(axes, studies.items(), strict=False):
        plot.style(panel, title=name, x=study["x"], y=study["unit"])
        points = study["points"]
        sizes = [each["size"] for each in points]
        for series in points[0]["median"]:
            medians = [each["median"][series] for each in points]
            panel.plot(sizes, medians, marker="o", markersize=3, linewidth=1.2, label=series)
        limits = {each["size"]: each["limit"] for each in points if each["limit"] is not None}
        if limits:
            plot.limit(panel, list(limits), list(limits.values()))
        panel.set_xscale("log")
        if study["unit"] == "µs":
            panel.set_yscale("log")
        else:
            panel.set_ylim(bottom=0)
        panel.legend(fontsize=7, frameon=False)
    if oracle:
        title = f"what {oracle['operations']:,} random operations met"
        panel = plot.style(axes[-1], title=title, x="times")
        seen = sorted(oracle["seen"].items(), key=lambda each: each[1])
        panel.barh([what for what, _ in seen], [times for _, times in seen], color=plot.COLOURS[0])
        panel.set_xscale("log")
        panel.tick_params(axis="y", labelsize=6)
    return plot.save(figure, path)


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """The worst point of each study that has a limit."""
    worst = {}
    for name, study in results["studies"].items():
        bound = [each for each in study["points"] if each["limit"] is not None]
        if bound:
            most = max(bound, key=lambda each: next(iter(each["median"].values())) / each["limit"])
            median, best = (next(iter(most[kind].values())) for kind in ("median", "best"))
            worst[name] = {
                **{study["x"]: most["size"], "median": round(median, 2), "best": round(best, 2)},
                **{"limit": round(most["limit"], 2), "unit": study["unit"], "met": most["met"]},
            }
    return {
        "complete": results["complete"],
        "worst": worst,
        "operations": results["oracle"].get("operations", 0),
    }


def main(
    quick: Annotated[bool, typer.Option(help="Fewer samples and operations.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("bench/results"),
    operations: Annotated[
        int | None, typer.Option(help="Random operations; 1,000,000, or 20,000 when quick.")
    ] = None,
) -> None:
    """Measure; print the worst points as JSON in the last line."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {
        "machine": machine() | {"threads": 1},
        "complete": False,
        "studies": {},
        "oracle": {},
    }
    try:
        run_studies(results, quick=quick)
        run_oracle(results, operations or (20_000 if quick else 1_000_000))
        results["complete"] = True
    except KeyboardInterrupt:
        sys.stderr.write("stopped; what was measured so far is kept\n")
    out.mkdir(parents=True, exist_ok=True)
    path = out / ("tree-quick.json" if quick else "tree.json")
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    draw(results, path)
    sys.stdout.write(json.dumps(summary(results), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    typer.run(main)
