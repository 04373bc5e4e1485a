"""The order of things over HTTP: start all, then workload by workload the servers take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from bench.client import Connection, Run, drive
from bench.peer.environments import PeerError
from bench.peer.equal import saturated
from bench.report import medians, summarize
from bench.servers import ServerError
from bench.workloads import Workload, arriving, renamed

Numbers = dict[str, Any]

CLOSED = 32
"""Requests in flight in the closed loop, which has twice as many."""
SPAN = 30.0
"""Seconds that requests arrive for. Answers take seconds, and the first find an empty cache: a much
shorter run would be about these."""
RUN_SECONDS = 300
KEPT = (
    "requests",
    *(f"{time}_p{percent}" for time in ("ttft", "tpot", "e2e") for percent in (50, 90)),
    "seconds",
    "requests_per_s",
    "output_tokens_per_s",
    "hit_rate",
    "hit_rate_theory",
)
"""Of what ``bench.report.summarize`` says of a run."""


class Runner(Protocol):
    """A server that stands still unless it is awake: ``bench.peer.served.Served``."""

    connection: Connection

    async def start(self, stack: AsyncExitStack) -> Numbers: ...
    async def wake(self) -> None: ...
    def pause(self) -> None: ...


class Bench:
    """Measures ``names`` on ``workloads``; all that came of it is in ``results`` at any time.

    For each workload ``results["workloads"][name]["closed"][peer]`` are medians with as many
    requests in flight as ``CLOSED``, and ``["rates"][peer]`` is one entry for each of ``shares``
    of the rate that came of that, in rising order, up to the first that brings no more answers.
    ``results["peers"][peer]["error"]`` says in one line why a peer was left out from there on.
    """

    def __init__(
        self,
        names: Sequence[str],
        workloads: Sequence[Workload],
        make: Callable[[str], Runner],
        results: Numbers,
        *,
        shares: Sequence[float],
        repeats: int,
        say: Callable[[str], None],
        step: Callable[[int], None],
    ):
        """``say`` gets what is being done; ``step`` how many of ``steps`` are behind."""
        self._names, self._workloads, self._make = names, workloads, make
        self._shares, self._repeats = shares, repeats
        self._say, self._step = say, step
        self._running: dict[str, Runner] = {}
        self._results = results
        results["peers"] = {name: {"error": None} for name in names}
        results["workloads"] = {}

    @property
    def steps(self) -> int:
        each = len(self._names) * self._repeats
        return len(self._names) + len(self._workloads) * each * (1 + len(self._shares))

    async def run(self) -> None:
        """All of it; the servers have ended afterwards."""
        made: dict[str, Runner] = {}
        for name in self._names:
            with self._or_drop(name):
                made[name] = self._make(name)
        self._step(len(self._names) - len(made))
        async with AsyncExitStack() as stack:
            for name, runner in made.items():
                self._say(f"starting {name}")
                with self._or_drop(name):
                    self._results["peers"][name] |= await runner.start(stack)
                    self._running[name] = runner
                self._step(1)
            for workload in self._workloads:
                await self._measure(workload)

    async def _measure(self, workload: Workload) -> None:
        closed: dict[str, Numbers] = {}
        rates: dict[str, list[Numbers]] = {name: [] for name in self._running}
        entry = {"scale": workload.scale, "requests": len(workload.turns)}
        self._results["workloads"][workload.name] = entry | {"closed": closed, "rates": rates}
        busy = replace(_first(workload, 2 * CLOSED), concurrency=CLOSED)
        for name in self._running:
            closed[name] = {}
        await self._round(closed, "closed loop", lambda name, repeat: busy)
        upright = [name for name in closed if name in self._running]
        for share in self._shares:
            points = {
                name: {"share": share, "rate": share * closed[name]["requests_per_s"]}
                for name in upright
            }
            for name, point in points.items():
                rates[name].append(point)
            arrive = partial(_arrive, workload, points)
            await self._round(points, f"{share:g} of the closed loop's rate", arrive)
            upright = [name for name in upright if self._rises(name, rates[name])]

    def _rises(self, name: str, points: list[Numbers]) -> bool:
        return name in self._running and not saturated(points)

    async def _round(
        self, points: dict[str, Numbers], what: str, make: Callable[[str, int], Workload]
    ) -> None:
        """All repeats of one thing, the servers in turns; their medians are added to ``points``."""
        names = list(points)
        runs: dict[str, list[Numbers]] = {name: [] for name in names}
        self._step((len(self._names) - len(names)) * self._repeats)
        for repeat in range(self._repeats):
            shift = repeat % max(1, len(names))
            for name in (*names[shift:], *names[:shift]):
                if name in self._running:
                    workload = make(name, repeat)
                    self._say(f"{workload.name}, {what}: {name}")
                    # Other token ids each time: nothing is left in a cache from the run before.
                    other = renamed(workload, (workload.name, what, repeat))
                    with self._or_drop(name):
                        runs[name].append(await self._drive(name, other))
                        points[name] |= medians(runs[name]) | {"runs": runs[name]}
                self._step(1)

    async def _drive(self, name: str, workload: Workload) -> Numbers:
        runner = self._running[name]
        try:
            async with asyncio.timeout(RUN_SECONDS):
                await runner.wake()
                run = await drive(runner.connection, workload, "", quiet=True)
        except TimeoutError as error:
            raise PeerError(f"{name}: {workload.name} took more than {RUN_SECONDS} s") from error
        finally:
            runner.pause()
        return numbers(run)

    @contextmanager
    def _or_drop(self, name: str) -> Iterator[None]:
        try:
            yield
        except (PeerError, ServerError) as error:
            self._results["peers"][name]["error"] = str(error)
            self._say(f"{name} is left out: {error}")
            self._running.pop(name, None)


def numbers(run: Run) -> Numbers:
    """A run in numbers; times in seconds.

    Raises:
        PeerError: not every request was answered with as many tokens as it asked for.
    """
    wanted = sorted(turn.output for turn in run.workload.turns)
    got = sorted(sample.output for sample in run.samples)
    if run.errors:
        raise PeerError(f"{run.server}: {len(run.errors)} refused, the first: {run.errors[0]}")
    if got != wanted:
        raise PeerError(f"{run.server}: {sum(got)} tokens came, and {sum(wanted)} were asked for")
    found = summarize(run)
    return {name: found[name] for name in KEPT}


def _arrive(workload: Workload, points: dict[str, Numbers], name: str, repeat: int) -> Workload:
    """The same arrivals for all servers but for their rate, and for how many there are."""
    rate = points[name]["rate"]
    return arriving(_first(workload, round(rate * SPAN)), rate, (workload.name, repeat))


def _first(workload: Workload, count: int) -> Workload:
    return replace(workload, conversations=workload.conversations[:count])
