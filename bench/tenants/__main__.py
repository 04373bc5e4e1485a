"""What tenants promise each other: fair shares, and how much is reused for all that.

    python -m bench.tenants [--quick] [--only fairness] [--data DIR] [--out bench/results]

Simulated with the real scheduler and cache, without a model. Results are written as JSON and PNG,
also after Ctrl-C, beside those of parts that were measured before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench import plot
from bench.machine import machine
from bench.report import verdicts
from bench.tenants import fairness, public, replay

PARTS = {"fairness": fairness, "replay": replay, "public": public}
"""Modules with ``measure(quick, data)``, ``table``, ``draw``, ``PANELS`` and, in what they measure,
``requirements``."""


def draw(results: dict[str, Any], path: Path) -> Path:
    """The panels of all parts."""
    parts = {name: PARTS[name] for name in PARTS if name in results}
    title = "tenants, simulated"
    figure, axes = plot.panels(sum(part.PANELS for part in parts.values()), title=title)
    first = 0
    for name, part in parts.items():
        part.draw(results[name], axes[first : first + part.PANELS])
        first += part.PANELS
    return plot.save(figure, path)


def main(
    quick: Annotated[bool, typer.Option(help="Less simulated time.")] = False,
    only: Annotated[str | None, typer.Option(help=f"One of: {', '.join(PARTS)}.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Recorded traffic; without it some is made up.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("bench/results"),
) -> None:
    """Measure; print what was promised and, as JSON in the last line, what came of it."""
    console = Console(stderr=True)
    path = out / ("tenants-quick.json" if quick else "tenants.json")
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    results["machine"] = machine()
    try:
        for name, part in PARTS.items():
            if only in (None, name):
                results[name] = part.measure(quick=quick, data=data)
                console.print(part.table(results[name]))
                if results[name]["requirements"]:
                    console.print(verdicts(results[name]["requirements"]))
    except KeyboardInterrupt:
        console.print("stopped; what was measured before is kept")
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, ensure_ascii=False) + "\n")
    draw(results, path)
    met = {
        each["name"]: each["met"]
        for name in PARTS
        for each in results.get(name, {}).get("requirements", ())
    }
    sys.stdout.write(json.dumps(met, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    typer.run(main)
