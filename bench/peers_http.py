"""radixserve beside other servers, over HTTP, on the same model, prompts and threads::

    python -m bench.peers_http --quick
    python -m bench.peers_http --only radixserve,vllm --workloads rag

Each server runs as a process of its own and stands still while another is measured: radixserve,
vLLM's, and llama.cpp's, which is built from source on the first run. They get the same prompts in
token ids, greedy answers of a fixed length, streamed, with their prefix caches on and 2 GiB of KV;
every run draws other token ids, so that each begins cold and what it reuses is its own.

For each workload the servers first take turns in a closed loop with 32 requests in flight. Then
requests arrive as a Poisson process, at rising shares of the rate that a server showed in the
loop, until it answers no more of them a second than at a lower rate (``bench.peer.equal``). The
most that it answers is its saturation, and the p90 time to a first token there the limit. What is
told is the most that radixserve answers within the limit, over the peer's saturation: above 1, it
serves more requests at the same first-token time.

A server that cannot be made or fails is left out with a word, and the others go on. What has been
measured is kept when the run is interrupted; the last line that is printed is the summary as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from bench import workloads
from bench.machine import machine, names
from bench.peer import mains, served, serving, serving_report
from bench.peer.environments import Models
from bench.peer.mains import Numbers
from bench.workloads import Encode, Workload
from radixserve.config import EngineConfig
from radixserve.engine.model_files import prepare
from radixserve.folders import cache_directory
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import unpack

WORKLOADS = ("shared-prefix", "long-shared-prefix", "rag")
SHARES, QUICK_SHARES = (0.75, 1.0, 1.25, 1.5, 1.75, 2.0), (0.75, 1.25)
"""Of the closed loop's rate."""


def build(name: str, encode: Encode, *, quick: bool) -> Workload:
    """The workload called ``name``, small enough for two cores."""
    match name:
        case "shared-prefix":
            return workloads.generated_shared_prefix(
                groups=4, per_group=16 if quick else 64, system=512, question=64, output=32
            )
        case "long-shared-prefix":
            made = workloads.generated_shared_prefix(
                groups=4, per_group=16 if quick else 64, system=1024, question=64, output=64
            )
            return replace(made, name=name)
        case "rag":
            return workloads.rag(
                encode, requests=64 if quick else 256, chunk=128, question=32, output=32
            )
    raise ValueError(f"no such workload: {name}; there are {', '.join(WORKLOADS)}")


def main() -> None:
    """Run, write what came of it, and end with status 0 if all servers were measured."""
    options = _options()
    console = mains.stderr()
    results = _nothing(options)
    mains.attempt(lambda: _run(options, console, results), results, console)
    serving_report.finish(results)
    for name, entry in results["workloads"].items():
        console.print(serving_report.table(name, entry))
    console.print(serving_report.verdict(results))
    for name, peer in results["peers"].items():
        if peer["error"]:
            console.print(f"{name} was left out: {escape(peer['error'])}")
    if results["status"] != "complete":
        console.print(f"[bold red]Not all was measured:[/] {escape(results['status'])}")
    path = options.out / f"{'peers_http-quick' if options.quick else 'peers_http'}.json"
    mains.write(results, path, "bench.peer.serving_figure", console)
    beside = {name: entry["beside"] for name, entry in results["workloads"].items()}
    mains.leave(results, ("seconds", "repeats"), beside=beside)


def _run(options: argparse.Namespace, console: Console, results: Numbers) -> None:
    options.env_dir.mkdir(parents=True, exist_ok=True)
    files = prepare(EngineConfig())
    tokenizer = Tokenizer.load(files.tokenizer)
    made = [
        build(name, partial(_encode, tokenizer), quick=options.quick) for name in options.workloads
    ]
    longest = max(len(turn.prompt) + turn.output for each in made for turn in each.turns)
    with mains.Steps(console) as steps:
        models = Models(files.model, options.env_dir / "models")
        setting = served.Setting(models, options.env_dir, options.threads, longest, steps.say)
        bench = serving.Bench(
            options.only,
            made,
            lambda name: served.Served(name, setting),
            results,
            shares=QUICK_SHARES if options.quick else SHARES,
            repeats=options.repeats,
            say=steps.say,
            step=steps.advance,
        )
        steps.expect(bench.steps)
        asyncio.run(bench.run())


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return unpack(tokenizer.encode(text, add_special_tokens=False))


def _nothing(options: argparse.Namespace) -> Numbers:
    """The results before anything was measured."""
    return {
        "status": "running",
        "quick": options.quick,
        "repeats": options.repeats,
        "threads": options.threads,
        "model": "SmolLM2-135M-Instruct",
        "precision": "weights and KV in 16 bits",
        "machine": machine(),
        "peers": {},
        "workloads": {},
    }


def _options() -> argparse.Namespace:
    servers = tuple(served.BY_NAME)
    parser = argparse.ArgumentParser(prog="python -m bench.peers_http", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--quick", action="store_true", help="two rates, not six: 10 minutes instead of 25"
    )
    parser.add_argument("--only", type=names(servers), default=servers, help=", ".join(servers))
    parser.add_argument(
        "--workloads", type=names(WORKLOADS), default=WORKLOADS, help=", ".join(WORKLOADS)
    )
    parser.add_argument("--repeats", type=int, default=1, help="of each rate")
    parser.add_argument(
        "--threads", type=int, default=min(2, os.cpu_count() or 1), help="CPU threads of each"
    )
    parser.add_argument("--env-dir", type=Path, help="where the servers are kept: several GB")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args()
    if min(options.repeats, options.threads) < 1:
        parser.error("--repeats and --threads must be at least 1")
    options.env_dir = (options.env_dir or cache_directory() / "peers").expanduser().resolve()
    return options


if __name__ == "__main__":
    main()
