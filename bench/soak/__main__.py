"""Chats, aborts, timeouts, nonsense, priorities, salts and small memory, all at once::

    python -m bench.soak --minutes 2
    python -m bench.soak --minutes 5 --kills 20

A server is started with the demo model in its deterministic mode and a pool of pages that is too
small for all who come. Every conversation has a marker of its own that nobody else may be told;
answers to a set of prompts have to stay what they were when nothing else went on, token by token.
With ``--kills`` the engine is killed at random moments, and has to come back.

In the end nothing may run or wait, every page must be accounted for, and, unless the engine was
killed, memory must not have grown and /health must have answered in time. The picture shows the
highest of both in each ten seconds. Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import aiohttp

from bench.client import session, when_idle
from bench.machine import machine
from bench.peer import mains
from bench.servers import COMMAND, Process
from bench.soak.visitors import VISITORS, Door, Findings, References, Visit, repeat
from bench.soak.watch import Watch

PAGES, SEATS, QUEUE = 260, 12, 24
"""About 4,000 tokens: enough for any one request, not for those that come together."""
OPTIONS = {
    "--num-pages": PAGES,
    "--max-num-seqs": SEATS,
    "--max-queue": QUEUE,
    "--queue-timeout": 60,
    "--scheduling-policy": "priority",
    "--log-level": "warning",
}
LONGEST = 300.0
"""Seconds; an answer that takes longer is a fault."""
HEALTHY = 0.1
"""Seconds in which 99 of 100 looks at /health have to be answered."""
GROWTH = 1.1
"""Memory at the end over memory in the middle, medians."""


def main() -> None:
    """Run, write what came of it, and end with status 0 if nothing was wrong."""
    options = _options()
    console = mains.stderr()
    results: dict[str, Any] = {
        "status": "running",
        "minutes": options.minutes,
        "threads": options.threads,
        "machine": machine(),
        "peers": {},
        "options": OPTIONS,
    }

    def run() -> None:
        with mains.Steps(console) as steps:
            asyncio.run(_soak(options, steps, results))

    mains.attempt(run, results, console)
    wrong = results.get("faults", [])
    if results["status"] == "complete" and wrong:
        results["status"] = f"{len(wrong)} faults"
    for line in wrong:
        console.print(f"[bold red]fault:[/] {line}", markup=True)
    if "health" in results:
        mains.write(results, options.out / "soak.json", "bench.soak.figure", console)
        mains.leave(results, ("minutes", "counts", "compared", "health_p99", "growth"))
    mains.leave(results, ("minutes",))


async def _soak(options: argparse.Namespace, steps: mains.Steps, results: dict[str, Any]) -> None:
    findings = Findings(say=steps.say)
    words = [str(word) for pair in OPTIONS.items() for word in pair]
    if options.threads is not None:
        words += ["--threads", str(options.threads)]
    async with AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="radixserve-soak-")))
        steps.say("starting the server")
        server = Process("soak", [*COMMAND, "--deterministic", *words], logs)
        await stack.enter_async_context(server)
        assert server.pid is not None
        http = await stack.enter_async_context(session(server.url, total=LONGEST))
        door = Door(http, findings)
        references = References(random.Random(options.seed))
        await references.learn(door)
        watch = Watch(server.url, server.pid, findings)
        await _visits(options, door, references, watch, http, steps)
        numbers = await when_idle(http)
        async with http.post("/reset_prefix_cache") as answer:
            purge = await answer.json()
        after = await when_idle(http)
        _judge(findings, numbers, purge, after)
        # A slow machine may get to no such answer in the minutes that it has.
        if not options.no_times:
            findings.check(findings.compared > 0, "no answer was compared")
            findings.check(findings.cached_tokens > 0, "nothing was ever reused")
        # An engine that is killed needs both cores, and its memory anew.
        if not (options.no_times or options.kills):
            _judge_times(findings, watch)
        results |= _results(findings, watch, numbers)


async def _visits(
    options: argparse.Namespace,
    door: Door,
    references: References,
    watch: Watch,
    http: aiohttp.ClientSession,
    steps: mains.Steps,
) -> None:
    findings, issued, seconds = door.findings, set[str](), options.minutes * 60
    steps.expect(round(seconds))
    async with asyncio.TaskGroup() as group:
        for visitor, count in VISITORS:
            for number in range(count):
                dice = random.Random(f"{options.seed} {visitor.__name__} {number}")
                visit = Visit(door, dice, references, issued)
                group.create_task(repeat(visitor, visit))
        group.create_task(watch.look_at_health(http))
        group.create_task(watch.look_at_memory())
        blows = group.create_task(
            watch.strike(http, options.kills, seconds, timed=not options.no_times)
        )
        end = perf_counter() + seconds
        while perf_counter() < end:
            await asyncio.sleep(1)
            steps.advance()
            done = sum(findings.counts.values())
            if round(end - perf_counter()) % 30 == 0:
                steps.say(f"{done} events, {findings.counts['faults']} faults")
        await blows
        findings.stop = True


def _judge(
    findings: Findings,
    numbers: dict[str, float],
    purge: dict[str, Any],
    after: dict[str, float],
) -> None:
    total = PAGES - 1
    kept = numbers["kv_pages_free"] + numbers["kv_pages_evictable"]
    findings.check(kept == total, f"{kept:g} of {total} pages are free or cold at the end")
    findings.check(purge["held_pages"] == 0, f"pages are still held: {purge}")
    free = after["kv_pages_free"]
    findings.check(free == total, f"{free:g} of {total} pages are free after a reset")


def _judge_times(findings: Findings, watch: Watch) -> None:
    slow = _p99(watch)
    findings.check(slow < HEALTHY, f"/health took {1e3 * slow:.0f} ms at p99")
    grown = _growth(watch)
    findings.check(grown < GROWTH, f"memory grew {grown:.2f} times in the second half")


def _p99(watch: Watch) -> float:
    return quantiles([took for _, took in watch.health], n=100)[98]


def _growth(watch: Watch) -> float:
    """Of memory, from the third quarter's median to the last one's."""
    sizes = [size for _, size in watch.memory]
    quarter = len(sizes) // 4
    return median(sizes[3 * quarter :]) / median(sizes[2 * quarter : 3 * quarter])


def _results(findings: Findings, watch: Watch, numbers: dict[str, float]) -> dict[str, Any]:
    return {
        "counts": dict(sorted(findings.counts.items())),
        "faults": findings.faults,
        "compared": findings.compared,
        "cached_tokens": findings.cached_tokens,
        "server": numbers,
        "health_p99": _p99(watch),
        "growth": _growth(watch),
        "kills": watch.kills,
        "health": _highest(watch.health),
        "memory": _highest(watch.memory),
    }


def _highest(samples: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The highest of each ten seconds, since an hour has thousands of samples."""
    highest: dict[int, float] = {}
    for at, value in samples:
        since = 10 * int(at / 10)
        highest[since] = max(value, highest.get(since, 0))
    return [(at, round(value, 4)) for at, value in highest.items()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--kills", type=int, default=0, help="times that the engine is killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--threads",
        type=int,
        help="of the engine; 1 where others use the machine, since threads wait for one another",
    )
    parser.add_argument(
        "--no-times",
        action="store_true",
        help="judge nothing by the clock or by memory: for machines that others share",
    )
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args()
    if options.minutes < 0.2 or options.kills < 0:
        parser.error("--minutes must be at least 0.2, --kills at least 0")
    if not sys.platform.startswith("linux"):
        parser.error("it reads /proc, which only Linux has")
    return options


if __name__ == "__main__":
    main()
