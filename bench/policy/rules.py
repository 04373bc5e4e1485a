"""How much each rule hits: on coding sessions in a closed loop, over fixed times, and over sizes.

Rules are replayed on paper (``radixserve.simulation.replay``), and the one that the server has also
in its own cache (``radixserve.simulation.served``). Sizes are in tokens, hits are shares of prompt
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.closed_loop import Traffic, sessions, traffic
from bench.policy import hints
from radixserve.cache.admission import Reuse
from radixserve.simulation.replay import Plan, least_recently_used, optimum, replay
from radixserve.simulation.served import serve
from radixserve.simulation.trace import Trace, read

Numbers = dict[str, Any]

HALVES = ("even", "odd")
"""Of the sessions. Constants were chosen on the even ones and, as to losses, at a few sizes of
Mooncake's traces."""
CASES = ((64, 820_000), (256, 820_000), (256, 3_000_000))
"""Sessions open at a time, and tokens of the cache."""
TIMES = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300)
"""Seconds for which everything is kept."""
MOONCAKE = {
    "conversation": tuple(round(200_000 * 60 ** (step / 19)) for step in range(20)),
    "synthetic": (
        *(round(200_000 * 10 ** (step / 119)) for step in range(120)),
        *(3_000_000, 6_000_000, 12_000_000),
    ),
}
"""Traces with sizes: close where the rules differ, since what is lost varies from size to size."""
CODING_SIZES = (400_000, 820_000, 1_600_000, 3_000_000, 6_000_000)


@dataclass
class Replayed:
    """A trace, and what it hits in caches of so many tokens."""

    trace: Trace

    @cached_property
    def plan(self) -> Plan:
        return Plan.of(self.trace)

    def blocks(self, tokens: int) -> int:
        return tokens // self.trace.block_size

    def lru(self, tokens: int, *, grace: float = 0.0) -> float:
        return replay(self.plan, least_recently_used(self.plan), self.blocks(tokens), grace=grace)

    def optimum(self, tokens: int, *, running: bool = False) -> float:
        return replay(self.plan, optimum(self.plan), self.blocks(tokens), running=running)

    def adaptive(self, tokens: int) -> float:
        blocks = self.blocks(tokens)
        return replay(self.plan, least_recently_used(self.plan), blocks, reuse=Reuse(blocks))

    def served(self, tokens: int, *, adaptive: bool) -> float:
        return serve(self.trace, self.blocks(tokens), adaptive=adaptive)


@dataclass
class Coding(Replayed):
    """Sessions, whose clients can say something."""

    traffic: Traffic

    @classmethod
    def of(cls, data: Path, half: str, opened: int, requests: int) -> Coding:
        recorded = sessions(data, HALVES.index(half))
        made = traffic(recorded, opened=opened, requests=requests)
        return cls(made.trace, made)

    def ended(self, tokens: int) -> float:
        """The adaptive rule, told of the last request of each session."""
        blocks = self.blocks(tokens)
        ranks = hints.by_end(self.plan, self.traffic)
        return replay(self.plan, ranks, blocks, reuse=Reuse(blocks))

    def hinted(self, tokens: int, *, people: bool) -> float:
        said = hints.expected(self.traffic, people=people)
        ranks, ends = hints.by_expectation(self.plan, self.traffic, said)
        return replay(self.plan, ranks, self.blocks(tokens), ends=ends)

    def told(self, tokens: int, *, people: bool = True, every: int = 1) -> float:
        """The cache that serves, told what clients say."""
        said = hints.expected(self.traffic, people=True)
        says = hints.keepings(self.traffic, said, people=people, every=every)
        return serve(self.trace, self.blocks(tokens), adaptive=True, says=says)


def closed(hits: float, lru: float, best: float) -> float:
    """The share of the way from ``lru`` to ``best``; 0 where there is none."""
    return (hits - lru) / (best - lru) if best > lru else 0.0


def case(coding: Coding, opened: int, tokens: int) -> Numbers:
    """Every rule on one traffic at one size, and how much of the gap each closes."""
    lru, best = coding.lru(tokens), coding.optimum(tokens)
    hits = {
        "adaptive": coding.adaptive(tokens),
        "adaptive, told of ends": coding.ended(tokens),
        "hints, tools only": coding.hinted(tokens, people=False),
        "hints": coding.hinted(tokens, people=True),
    }
    served = {
        "adaptive": coding.served(tokens, adaptive=True),
        "hints": coding.told(tokens),
        "hints, tools only": coding.told(tokens, people=False),
        "hints, every other session": coding.told(tokens, every=2),
    }
    by_age, running = coding.served(tokens, adaptive=False), coding.optimum(tokens, running=True)
    return {
        "opened": opened,
        "tokens": tokens,
        "hits": {"lru": lru} | hits | {"optimum": best},
        "closed": {name: closed(each, lru, best) for name, each in hits.items()},
        "served": {"lru": by_age} | served | {"optimum": running},
        "closed_served": {name: closed(each, by_age, best) for name, each in served.items()},
        "closed_running": {name: closed(each, by_age, running) for name, each in served.items()},
    }


def keeping(coding: Coding, tokens: int) -> Numbers:
    """Hits where everything is kept for a fixed time, beside the order of age."""
    return {
        "tokens": tokens,
        "seconds": list(TIMES),
        "hits": [coding.lru(tokens, grace=each) for each in TIMES],
        "lru": coding.lru(tokens),
    }


def over_sizes(replayed: Replayed, sizes: tuple[int, ...], bar: tqdm[Any]) -> Numbers:
    """Hits by age and by the adaptive rule, on paper and in the cache that serves."""
    rows = []
    for tokens in sizes:
        paper = replayed.lru(tokens), replayed.adaptive(tokens)
        served = (replayed.served(tokens, adaptive=each) for each in (False, True))
        rows.append((*paper, *served))
        bar.update()
    lru, adaptive, served_lru, served_adaptive = map(list, zip(*rows, strict=True))
    return {
        "tokens": list(sizes),
        "paper": {"lru": lru, "adaptive": adaptive},
        "served": {"lru": served_lru, "adaptive": served_adaptive},
    }


def points(over: Numbers, where: str) -> Iterator[float]:
    """Percentage points that the adaptive rule gains at each size; ``where`` is it measured."""
    for lru, adaptive in zip(over[where]["lru"], over[where]["adaptive"], strict=True):
        yield 100 * (adaptive - lru)


def measure(data: Path, requests: int, results: Numbers, bar: tqdm[Any]) -> None:
    """Fill ``results`` part by part."""
    results["coding"] = {half: [] for half in HALVES}
    results["keeping"] = {}
    results["sizes"] = {}
    for half in HALVES:
        for opened in dict.fromkeys(opened for opened, _ in CASES):
            bar.set_postfix_str(f"{half} sessions, {opened} open")
            coding = Coding.of(data, half, opened, requests)
            for tokens in (tokens for each, tokens in CASES if each == opened):
                results["coding"][half].append(case(coding, opened, tokens))
                bar.update()
                if half == HALVES[-1]:
                    name = f"{opened} open, {tokens / 1e6:g} M tokens"
                    results["keeping"][name] = keeping(coding, tokens)
                    bar.update()
            if half == HALVES[-1]:
                name = f"coding, {opened} open"
                results["sizes"][name] = over_sizes(coding, CODING_SIZES, bar)
    for name, sizes in MOONCAKE.items():
        bar.set_postfix_str(name)
        replayed = Replayed(read(data / f"mooncake/{name}_trace.jsonl"))
        results["sizes"][name] = over_sizes(replayed, sizes, bar)


def steps() -> int:
    """Updates of the bar in ``measure``."""
    opened = len({opened for opened, _ in CASES})
    over = opened * len(CODING_SIZES) + sum(map(len, MOONCAKE.values()))
    return (len(HALVES) + 1) * len(CASES) + over
