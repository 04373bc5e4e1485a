"""radixserve beside other engines, on the same model, prompts and threads::

    python -m bench.peers --quick
    python -m bench.peers --only radixserve,llama.cpp --cases cold,cached

Each peer gets an environment of its own, installed from PyPI on the first run (several GB), and
runs in a process of its own that stands still while others are measured. Case by case the peers
take turns, so that times count as ratios within one run. A peer that cannot be installed or fails
is left out with a word, and the others go on. What has been measured is kept when the run is
interrupted; the last line that is printed is the summary as JSON.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from bench.machine import machine, names
from bench.peer import cases, mains, report, roster
from bench.peer.environments import Models
from bench.peer.measure import Bench, Numbers
from radixserve.config import EngineConfig
from radixserve.engine.model_files import prepare
from radixserve.folders import cache_directory

REPEATS, STARTS = 5, 3


def main() -> None:
    """Run, write what came of it, and end with status 0 if all peers were measured."""
    options = _options()
    console = mains.stderr()
    results = _nothing(options)
    mains.attempt(lambda: _run(options, console, results), results, console)
    report.finish(results)
    console.print(report.table(results))
    for note in report.notes(results):
        console.print(escape(note))
    if results["status"] != "complete":
        console.print(f"[bold red]Not all was measured:[/] {escape(results['status'])}")
    report.write(results, options.out, console)
    ratios = {name: entry["ratio"] for name, entry in results["cases"].items()}
    mains.leave(results, ("seconds", "repeats"), ratios=ratios)


def _run(options: argparse.Namespace, console: Console, results: Numbers) -> None:
    options.env_dir.mkdir(parents=True, exist_ok=True)
    models = Models(prepare(EngineConfig()).model, options.env_dir / "models")
    with mains.Steps(console) as steps:
        bench = Bench(
            options.only,
            [cases.BY_NAME[name] for name in options.cases],
            roster.Roster(models, options.env_dir, options.threads, steps.say),
            results,
            repeats=options.repeats,
            starts=options.starts,
            say=steps.say,
            step=steps.advance,
        )
        steps.expect(bench.steps)
        bench.run()


def _nothing(options: argparse.Namespace) -> Numbers:
    """The results before anything was measured."""
    return {
        "status": "running",
        "quick": options.quick,
        "repeats": options.repeats,
        "starts": options.starts,
        "threads": options.threads,
        "model": "SmolLM2-135M-Instruct",
        "precision": "weights in 16 bits; KV in 16 bits unless a peer's title says otherwise",
        "machine": machine(),
        "peers": {},
        "cases": {},
        "agreement": {},
    }


def _options() -> argparse.Namespace:
    peers, known = tuple(peer.name for peer in roster.PEERS), tuple(cases.BY_NAME)
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--quick", action="store_true", help="each case once: 10 minutes instead of 30"
    )
    parser.add_argument("--only", type=names(peers), default=peers, help=", ".join(peers))
    parser.add_argument("--cases", type=names(known), default=known, help=", ".join(known))
    parser.add_argument("--repeats", type=int, help=f"of each case; {REPEATS}, or 1 when quick")
    parser.add_argument("--starts", type=int, help=f"of each peer; {STARTS}, or 1 when quick")
    parser.add_argument(
        "--threads", type=int, default=min(2, os.cpu_count() or 1), help="CPU threads of each peer"
    )
    parser.add_argument("--env-dir", type=Path, help="where environments are kept: several GB")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args()
    if options.repeats is None:
        options.repeats = 1 if options.quick else REPEATS
    if options.starts is None:
        options.starts = 1 if options.quick else STARTS
    if min(options.repeats, options.starts, options.threads) < 1:
        parser.error("--repeats, --starts and --threads must be at least 1")
    options.env_dir = (options.env_dir or cache_directory() / "peers").expanduser().resolve()
    return options


if __name__ == "__main__":
    main()
