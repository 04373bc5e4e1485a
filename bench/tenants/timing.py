"""Whether one tenant can tell, from counts or from times, what another one has cached::

    python -m bench.tenants.timing [--trials 1000] [--probes 10000] [--out bench/results]

A server of our own serves the demo model to two tenants with keys. An attacker times first tokens
of prompts that a victim has just had computed and of prompts that nobody has, and asks for counts;
the control is the victim's own second request, which has to be told apart. AUC is the chance that a
random hit is answered sooner than a random miss: 0.5 is a guess (Fawcett, "An introduction to ROC
analysis", 2006).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import aiohttp
import typer
from tqdm import tqdm

from bench.client import session
from bench.machine import machine
from bench.servers import Server
from radixserve.tenants.keys import hash_of, new_key

LENGTH = 128
"""Tokens of a prompt that is timed."""
SHORT = 24
"""Of one whose counts alone are asked for."""
AT_ONCE = 4
VOCABULARY = range(100, 40_000)
GUESS, GUESS_WITHIN = 0.5, 0.03
TOLD_APART = 0.9
VICTIM, ATTACKER = "victim", "attacker"

Headers = dict[str, str]


class Visitor:
    """A tenant with its key."""

    def __init__(self, http: aiohttp.ClientSession, key: str):
        self._http = http
        self._headers: Headers = {"authorization": f"Bearer {key}"}

    async def ask(self, prompt: list[int]) -> tuple[float, int]:
        """Seconds until the only token, and how many of the prompt's were cached."""
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        begun = perf_counter()
        async with self._http.post("/v1/completions", json=body, headers=self._headers) as answer:
            said = await answer.json()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {said}")
        cached = said["usage"]["prompt_tokens_details"]["cached_tokens"]
        return perf_counter() - begun, int(cached)


def auc(hits: list[float], misses: list[float]) -> float:
    """The chance that a random hit took less than a random miss; ties count half.

    O(n log n), by ranks (Mann and Whitney, 1947).
    """
    ordered = sorted([(each, 0) for each in hits] + [(each, 1) for each in misses])
    ranks: dict[float, list[int]] = {}
    for place, (each, _) in enumerate(ordered, 1):
        ranks.setdefault(each, []).append(place)
    total = sum(sum(ranks[each]) / len(ranks[each]) for each in misses)
    return (total - len(misses) * (len(misses) + 1) / 2) / (len(hits) * len(misses))


class Words:
    """Draws prompts of which no two begin alike: whoever asked for another one of them has nothing
    of this."""

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._firsts = rng.sample(VOCABULARY, len(VOCABULARY))

    def __call__(self, length: int) -> list[int]:
        return [self._firsts.pop(), *self._rng.choices(VOCABULARY, k=length - 1)]


async def timed(
    victim: Visitor, attacker: Visitor, trials: int, rng: random.Random, words: Words
) -> Any:
    """Times of what the victim has had computed, and of what nobody has; one request at a time."""
    found: dict[str, list[float]] = {"hits": [], "misses": [], "own": []}
    leaked = 0
    kinds = ["hits", "misses"] * trials
    rng.shuffle(kinds)
    for place, kind in enumerate(tqdm(kinds, desc="timing", unit="trial", disable=None)):
        secret = words(LENGTH)
        asked = secret if kind == "hits" else words(LENGTH)
        await victim.ask(secret)
        seconds, cached = await attacker.ask(asked)
        found[kind].append(seconds)
        leaked += cached > 0
        if place % 8 == 0:
            seconds, cached = await victim.ask(secret)
            assert cached > 0, "the victim's own prompt is not cached"
            found["own"].append(seconds)
    return {
        "trials": {name: len(times) for name, times in found.items()},
        "auc": auc(found["hits"], found["misses"]),
        "auc_own": auc(found["own"], found["misses"]),
        "leaks": leaked,
        "seconds": found,
    }


async def counted(victim: Visitor, attacker: Visitor, probes: int, words: Words) -> Any:
    """Counts of what the victim has had computed, each with the victim's own as the control."""
    leaks = controls = 0
    slots = asyncio.Semaphore(AT_ONCE)
    bar = tqdm(total=probes, desc="counts", unit="probe", disable=None)

    async def probe(secret: list[int]) -> None:
        nonlocal leaks, controls
        async with slots:
            await victim.ask(secret)
            _, theirs = await attacker.ask(secret)
            _, own = await victim.ask(secret)
        leaks += theirs > 0
        controls += own > 0
        bar.update()

    await asyncio.gather(*(probe(words(SHORT)) for _ in range(probes)))
    bar.close()
    return {"probes": probes, "leaks": leaks, "controls": controls}


async def measure(trials: int, probes: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    words = Words(rng)
    keys = {name: new_key() for name in (VICTIM, ATTACKER)}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="radixserve-")))
        rows = [f'[tenants.{name}]\nkeys = ["{hash_of(key)}"]' for name, key in keys.items()]
        tenants = folder / "tenants.toml"
        tenants.write_text("\n".join([*rows, ""]), encoding="utf-8")
        server = Server("tenants", None, ["--tenants", str(tenants)], folder)
        await stack.enter_async_context(server)
        http = await stack.enter_async_context(session(server.url, total=60))
        victim, attacker = (Visitor(http, keys[name]) for name in (VICTIM, ATTACKER))
        return {
            "machine": machine(),
            "timing": await timed(victim, attacker, trials, rng, words),
            "counts": await counted(victim, attacker, probes, words),
        }


def requirements(results: dict[str, Any]) -> dict[str, bool]:
    """What was promised, and whether it holds."""
    timing, counts = results["timing"], results["counts"]
    return {
        "an attacker's times are a guess": abs(timing["auc"] - GUESS) <= GUESS_WITHIN,
        "one's own are not": timing["auc_own"] >= TOLD_APART,
        "no count tells of another": not (timing["leaks"] or counts["leaks"]),
        "every control hits": counts["controls"] == counts["probes"],
    }


def main(
    trials: Annotated[int, typer.Option(help="Timed requests of each kind.")] = 1000,
    probes: Annotated[int, typer.Option(help="Requests whose counts are looked at.")] = 10_000,
    seed: Annotated[int, typer.Option()] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("bench/results"),
) -> None:
    """Measure; print what came of it as JSON in the last line, and fail if a promise is broken."""
    if 4 * trials + probes > len(VOCABULARY):
        raise typer.BadParameter("no two prompts may begin alike: ask for fewer of them")
    results = asyncio.run(measure(trials, probes, seed))
    met = requirements(results)
    results["requirements"] = met
    out.mkdir(parents=True, exist_ok=True)
    (out / "tenants-timing.json").write_text(json.dumps(results) + "\n", encoding="utf-8")
    shown = {name: value for name, value in results["timing"].items() if name != "seconds"}
    said = {"timing": shown, "counts": results["counts"], "met": met}
    sys.stdout.write(json.dumps(said) + "\n")
    raise typer.Exit(0 if all(met.values()) else 1)


if __name__ == "__main__":
    typer.run(main)
