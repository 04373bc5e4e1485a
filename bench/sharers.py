"""How fast requests decode that share a prefix, over their number and the prefix's length::

    python -m bench.sharers
    python -m bench.sharers --only radixserve,apart

radixserve reads a shared prefix once a step; ``apart`` is radixserve with each request reading it
for itself. Peers run as in ``bench.peers``, in the same environments. Beside them stands what the
machine could do: the larger of the time to read what has to be read and the time to multiply what
has to be multiplied, at rates that are measured first.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from bench import plot
from bench.machine import machine, names
from bench.peer import cases, mains, report, roster
from bench.peer.environments import Models
from bench.peer.measure import Bench
from radixserve.attention.cpu import kernels
from radixserve.config import EngineConfig
from radixserve.engine.model_files import prepare
from radixserve.errors import RadixServeError
from radixserve.folders import cache_directory
from radixserve.kernels.cpu.weights import Arena

Numbers = dict[str, Any]

KV_TOKEN = 30 * 2 * 3 * 64 * 2
"""Bytes of a token's KV in the demo model, in 16 bits."""
ATTENTION = 30 * 4 * 9 * 64
"""Operations of a token's attention on one token of its context."""
OWN = 60 + cases.DECODED // 2
"""Tokens that each request has for itself, on average."""


def rates(threads: int) -> tuple[float, float]:
    """Bytes a second that products with one row read, and operations a second of large ones."""
    native = kernels()
    if native is None:
        raise RadixServeError("without the native kernels there is nothing to compare.")
    weight = torch.randn(49_152, 2048).to(torch.bfloat16)
    arena = Arena(native.packed_bytes(*weight.shape, weight.dtype))
    packed = native.pack(weight, arena)

    def best(rows: int) -> float:
        inputs = torch.randn(rows, weight.shape[1]).to(torch.bfloat16)
        times = []
        for _ in range(7):
            start = perf_counter()
            native.multiply(inputs, packed, threads=threads)
            times.append(perf_counter() - start)
        return min(times)

    return weight.nbytes / best(1), 2 * 256 * weight.numel() / best(256)


def ceiling(sharers: int, length: int, weight_bytes: int, read: float, compute: float) -> float:
    """Tokens a second of a machine that does nothing but the necessary, at full rate."""
    seen = weight_bytes + KV_TOKEN * (length + sharers * OWN)
    work = sharers * (weight_bytes + ATTENTION * (length + OWN))  # two operations a 16-bit weight
    return sharers / max(seen / read, work / compute)


def draw(results: Numbers, path: Path) -> Path:
    """Curves over the number of sharers and over the length of the prefix."""
    figure, axes = plot.panels(2, title=f"Decoding on a shared prefix: {results['machine']['cpu']}")
    for panel, (title, x, points) in zip(axes, _curves(), strict=True):
        plot.style(panel, title=title, x=x, y="tokens a second, all requests")
        for peer in results["peers"]:
            found = {
                at: median
                for at, name in points
                if (median := results["cases"].get(name, {}).get("median", {}).get(peer))
            }
            panel.plot(
                list(found), list(found.values()), marker="o", markersize=3,
                label=roster.BY_NAME[peer].title,
                linewidth=2.2 if peer == cases.OURS else 1.2,
            )  # fmt: skip
        plot.limit(
            panel,
            [at for at, _ in points],
            [results["ceiling"][name] for _, name in points],
        )
        panel.set_xscale("log")
        panel.minorticks_off()
        panel.set_xticks([at for at, _ in points], [f"{at:,}" for at, _ in points])
        panel.set_ylim(bottom=0)
        panel.legend(fontsize=6, frameon=False)
        panel.get_legend().get_texts()[-1].set_text("what the machine could do")
    return plot.save(figure, path)


def _curves() -> list[tuple[str, str, list[tuple[int, str]]]]:
    return [
        (
            f"{cases.USUAL_LENGTH:,} shared tokens",
            "requests",
            [(n, cases.sharing(n, cases.USUAL_LENGTH).name) for n in cases.GRID_SHARERS],
        ),
        (
            f"{cases.USUAL_SHARERS} requests",
            "shared tokens",
            [(n, cases.sharing(cases.USUAL_SHARERS, n).name) for n in cases.GRID_LENGTHS],
        ),
    ]


def main() -> None:
    """Run, write what came of it, and end with status 0 if all peers were measured."""
    options = _options()
    console = mains.stderr()
    results: Numbers = {"status": "running", "repeats": options.repeats, "quick": False}
    results |= {"threads": options.threads, "machine": machine(), "cases": {}, "peers": {}}
    mains.attempt(lambda: _run(options, console, results), results, console)
    report.finish(results)
    console.print(report.table(results))
    console.print(escape(results["status"]))
    if any(entry["median"] for entry in results["cases"].values()):
        mains.write(results, options.out / "sharers.json", __name__, console)
    mains.leave(results, ())


def _run(options: argparse.Namespace, console: Console, results: Numbers) -> None:
    read, compute = rates(options.threads)
    results["rates"] = {"bytes_per_s": read, "operations_per_s": compute}
    models = Models(prepare(EngineConfig()).model, options.env_dir / "models")
    results["ceiling"] = {
        case.name: ceiling(case.requests, case.shared, models.weight_bytes, read, compute)
        for case in cases.GRID
    }
    options.env_dir.mkdir(parents=True, exist_ok=True)
    with mains.Steps(console) as steps:
        bench = Bench(
            options.only,
            cases.GRID,
            roster.Roster(models, options.env_dir, options.threads, steps.say),
            results,
            repeats=options.repeats,
            starts=1,
            say=steps.say,
            step=steps.advance,
        )
        steps.expect(bench.steps)
        bench.run()


def _options() -> argparse.Namespace:
    known = tuple(roster.BY_NAME)
    parser = argparse.ArgumentParser(prog="python -m bench.sharers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", type=names(known), default=known, help=", ".join(known))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--env-dir", type=Path, default=cache_directory() / "peers")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
