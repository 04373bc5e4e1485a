"""Serving workloads over HTTP, with and without the prefix cache::

    python -m bench.serve --quick
    python -m bench.serve --data ../data --out bench/results

Servers are started as processes of their own and measured one at a time, alternating. Times count
only as ratios within one run. What has been measured is kept when the run is interrupted, and the
last line that is printed is the results' summary as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.markup import escape

from bench import phases, report
from bench.machine import machine, names
from bench.phases import Bench
from bench.servers import ServerError
from bench.sizes import (
    FULL,
    NAMES,
    QUICK,
    Size,
    build,
    long_shared_workload,
    sweep_workload,
    unshared_workload,
)
from bench.workloads import Encode
from radixserve.config import EngineConfig
from radixserve.engine.model_files import prepare
from radixserve.errors import RadixServeError
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import unpack

PARTS = ("kv", "warm", "workloads", "arrivals", "deterministic", "tree", "sweeps")


def main() -> None:
    """Run, write what came of it, and end with status 0 if nothing went wrong."""
    options = _options()
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=160)
    size = QUICK if options.quick else FULL
    results = _nothing(options, size)
    start = perf_counter()
    deadline = start + results["scale"]["minutes"] * 60
    status = 1
    with tempfile.TemporaryDirectory(prefix="radixserve-bench-") as logs:
        bench = Bench(options, size, console, Path(logs), results, deadline)
        try:
            asyncio.run(_run(bench))
            cut = [name for name, part in results["parts"].items() if part["outcome"] != "done"]
            results["status"] = f"cut short: {', '.join(cut)}" if cut else "complete"
            status = 0
        except KeyboardInterrupt:
            results["status"], status = "interrupted", 130
        except (ServerError, RadixServeError) as error:
            results["status"] = str(error)
        except Exception as error:
            # Whatever it is, what was measured before it must not be lost.
            console.print_exception()
            results["status"] = repr(error)
    if status:
        said = escape(results["status"])
        console.print(f"[bold red]Stopped:[/] {said}; what was measured is kept")
    results["seconds"] = perf_counter() - start
    results["machine"]["load_at_end"] = os.getloadavg()
    results["requirements"] = phases.judge(results)
    console.print(report.verdicts(results["requirements"]))
    report.write(results, options.out, console)
    shown = ("status", "seconds", "scale", "parts", "requirements", "errors")
    sys.stdout.write(json.dumps({key: results[key] for key in shown}) + "\n")
    sys.exit(status)


def _nothing(options: argparse.Namespace, size: Size) -> report.Numbers:
    """The results before anything was measured."""
    return {
        "status": "running",
        "quick": options.quick,
        "scale": {
            "requests": options.scale,
            "minutes": options.minutes or size.minutes,
            "sharegpt_lengths": size.sharegpt,
            "alpaca_lengths": size.alpaca,
            "kv_tokens": phases.KV_TOKENS,
        },
        "machine": machine(),
        "model": options.model or "the demo model",
        "threads": options.threads,
        "parts": {},
        "workloads": {},
        "arrivals": {},
        "deterministic": {},
        "sweeps": {},
        "errors": [],
    }


async def _run(bench: Bench) -> None:
    options, quick = bench.options, bench.options.quick
    wanted = options.parts
    if "kv" in wanted:
        phases.memory(bench)
    if {"warm", "workloads", "arrivals"} & set(wanted):
        encode = _encoder(options.model)
        made = [
            build(name, quick=quick, scale=options.scale, data=options.data, encode=encode)
            for name in (options.workloads if "workloads" in wanted else ())
        ]
        async with bench.servers():
            if "warm" in wanted:
                await phases.within(bench, "warm", 0.3, lambda: phases.warm_and_cold(bench))
            if "workloads" in wanted:
                await phases.within(bench, "workloads", 0.5, lambda: phases.reuse(bench, made))
            if "arrivals" in wanted:
                await phases.within(bench, "arrivals", 0.45, lambda: phases.arrivals(bench))
    if options.url:
        return
    if "deterministic" in wanted:
        made = [
            sweep_workload(quick=quick),
            unshared_workload(quick=quick),
            long_shared_workload(quick=quick),
        ]
        part = partial(phases.deterministic, bench, made)
        await phases.within(bench, "deterministic", 0.3, part)
    if "tree" in wanted:
        phases.tree(bench, unshared_workload(quick=quick))
    if "sweeps" in wanted:
        workload = sweep_workload(quick=quick)
        for left, knob in zip((3, 2, 1), bench.size.sweeps, strict=True):
            part = partial(phases.sweep, bench, knob, workload)
            await phases.within(bench, knob, 1 / left, part)


def _encoder(model: str | None) -> Encode:
    tokenizer = Tokenizer.load(prepare(EngineConfig(model=model)).tokenizer)
    return lambda text: unpack(tokenizer.encode(text, add_special_tokens=False))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="about 4 minutes instead of 20")
    parser.add_argument("--workloads", type=names(NAMES), default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--parts", type=names(PARTS), default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--data", type=Path, help="folder with agents/ and mooncake/ recordings")
    parser.add_argument("--model", help="as radixserve serve takes it; default: the demo model")
    parser.add_argument("--load-format", help="as radixserve serve takes it")
    parser.add_argument("--threads", type=int, help="CPU threads of each server")
    parser.add_argument("--url", help="measure this running server instead of starting our own")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of requests")
    parser.add_argument("--minutes", type=float, help="time to spend; parts beyond it are cut")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args()
    if options.data and not options.data.is_dir():
        parser.error(f"--data {options.data} is no folder")
    return options


if __name__ == "__main__":
    main()
