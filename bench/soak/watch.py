"""What is looked at while the visitors come: health, memory, and now and then a blow."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import aiohttp

from bench.soak.visitors import Findings
from radixserve.engine.process.supervisor import DELAYS

HEALTH_SECONDS = 0.2
MEMORY_SECONDS = 1.0
BACK_SECONDS = 15.0
"""Within which a killed engine has to be healthy again, beside what is waited before a start."""


@dataclass
class Watch:
    """Samples, with moments in seconds from the start."""

    url: str
    pid: int
    findings: Findings
    started: float = field(default_factory=perf_counter)
    health: list[tuple[float, float]] = field(default_factory=list)
    """When, and how many seconds the answer took."""
    memory: list[tuple[float, int]] = field(default_factory=list)
    """When, and the resident bytes of the server and its engine together."""
    kills: list[tuple[float, float]] = field(default_factory=list)
    """When, and after how many seconds it was healthy again."""

    async def look_at_health(self, http: aiohttp.ClientSession) -> None:
        while not self.findings.stop:
            began = perf_counter()
            async with http.get("/health") as answer:
                await answer.read()
            self.health.append((began - self.started, perf_counter() - began))
            await asyncio.sleep(HEALTH_SECONDS)

    async def look_at_memory(self) -> None:
        while not self.findings.stop:
            self.memory.append((perf_counter() - self.started, resident(self.pid)))
            await asyncio.sleep(MEMORY_SECONDS)

    async def strike(
        self, http: aiohttp.ClientSession, times: int, seconds: float, *, timed: bool
    ) -> None:
        """Kill the engine ``times`` within ``seconds``, each time when it is up; where it is
        ``timed``, it has to come back soon."""
        dice = random.Random(1)
        for number in range(times):
            await asyncio.sleep(dice.uniform(0.3, 1.7) * seconds / times)
            [engine] = children(self.pid)
            os.kill(engine, signal.SIGKILL)
            began = perf_counter()
            while not await self._back(http, engine):
                await asyncio.sleep(0.05)
            took = perf_counter() - began
            self.kills.append((began - self.started, took))
            allowed = BACK_SECONDS + DELAYS[min(number, len(DELAYS) - 1)]
            self.findings.check(took <= allowed or not timed, f"back only after {took:.1f} s")

    async def _back(self, http: aiohttp.ClientSession, dead: int) -> bool:
        async with http.get("/health") as answer:
            return answer.status == 200 and dead not in children(self.pid)


def children(pid: int) -> list[int]:
    """The processes that ``pid`` has started and that run. Linux."""
    numbers = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())
    return [each for each in numbers if _parent(each) == pid]


def resident(pid: int) -> int:
    """Bytes of memory that ``pid`` and its children hold. Linux."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for each in (pid, *children(pid)):
        try:
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * page
        except OSError:  # it has ended meanwhile
            continue
    return total


def _parent(pid: int) -> int | None:
    """Who started ``pid``; None if it has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)
