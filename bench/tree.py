"""What the tree and the scheduler cost, beside what they may cost, and a long random life of them.

    python -m bench.tree [--quick] [--out bench/results] [--operations 1000000]

One thread, many samples a point. The median is what counts; the best is what a quiet machine would
show. Results are written as JSON and PNG, also after Ctrl-C.
"""

from __future__ import annotations

import gc
import json
import platform
import random
import statistics
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from os import getloadavg
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer
from tqdm import tqdm

from bench import plot
from radixserve.attention.arrays import paged_batch
from radixserve.cache.node import walk
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.config import EngineConfig
from radixserve.scheduling.plan import Sampled
from radixserve.scheduling.sampling import SamplingParams
from radixserve.scheduling.scheduler import Scheduler
from radixserve.tokens import TOKEN_BYTES
from tests.cache.oracle import EPISODE, run

PAGE = 16
LEAF_BLOCKS = 16
TRUNK = 100_000
EVICTED_AT_ONCE = 256

Samples = dict[str, list[float]]
"""By series, in the unit of the study."""


@dataclass(frozen=True, slots=True)
class Study:
    """One cost over a growing size; the first series is the one that its limit is for."""

    name: str
    x: str
    unit: str
    sizes: tuple[int, ...]
    measure: Callable[[int, int], Samples]
    """(size, repeats) -> samples."""
    limit: Callable[[int], float] | None = None
    times_first: float | None = None
    """The limit as a multiple of what the smallest size costs."""


# What is measured


def sequence(rng: random.Random, tokens: int) -> bytearray:
    """Random tokens, in the type that the scheduler hands to the cache."""
    return bytearray(rng.randbytes(tokens * TOKEN_BYTES))


def serve(cache: PrefixCache, tokens: bytearray) -> None:
    """A whole request that ends at once, in a step of its own."""
    step = cache.begin_step()
    with cache.acquire(tokens, b"") as lease:
        count = len(tokens) // TOKEN_BYTES
        lease.extend(count - lease.computed)
        lease.copied()
        lease.publish(count)
    cache.end_step(step)


def with_leaves(leaves: int, *, blocks: int = LEAF_BLOCKS, spare: int = 10_000) -> PrefixCache:
    """A cache of ``leaves`` unrelated prompts, and room for ``spare`` more pages."""
    cache = PrefixCache(leaves * blocks + spare, PAGE)
    rng = random.Random(leaves)
    for _ in range(leaves):
        serve(cache, sequence(rng, blocks * PAGE))
    return cache


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection meanwhile: it would be paid by whoever comes last."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def clock(action: Callable[[], object]) -> float:
    """Microseconds that ``action`` takes."""
    start = perf_counter()
    action()
    return (perf_counter() - start) * 1e6


def match(tokens: int, edges: int, repeats: int) -> Samples:
    """Match and pin a cached prompt whose path has ``edges`` edges; and one memcmp of its size."""
    rng = random.Random(edges)
    trunk = sequence(rng, tokens)
    block = PAGE * TOKEN_BYTES
    cache = PrefixCache(tokens // PAGE + edges + 64, PAGE)
    blocks = tokens // PAGE
    # Two prompts part at the end of each edge, so that the match ends at a node.
    for edge in (edges, *range(edges, 0, -1)):
        cut = blocks * edge // edges * block
        serve(cache, trunk[:cut] + sequence(rng, PAGE))
    prompt = trunk[: blocks * block] + sequence(rng, 1)
    copy = bytes(trunk)
    samples: Samples = {"match and pin": [], "let go": [], "memcmp alone": []}
    with quiet():
        for _ in range(repeats):
            start = perf_counter()
            lease = cache.acquire(prompt, b"")
            samples["match and pin"].append((perf_counter() - start) * 1e6)
            assert lease.reused == blocks * PAGE
            samples["let go"].append(clock(lease.release))
            samples["memcmp alone"].append(clock(lambda: trunk.startswith(copy)))
    return samples


def insert(cache: PrefixCache, tokens: int, repeats: int) -> Samples:
    """Publish ``tokens`` new tokens beside all the other prompts."""
    rng = random.Random(tokens)
    samples: Samples = {"publish": []}
    with quiet():
        for _ in range(repeats):
            with cache.acquire(sequence(rng, tokens), b"") as lease:
                lease.extend(tokens)
                start = perf_counter()
                lease.publish(tokens)
                samples["publish"].append((perf_counter() - start) * 1e6)
    return samples


def evict_many(pages: int, repeats: int) -> Samples:
    cache = with_leaves(pages // LEAF_BLOCKS)
    repeats = min(repeats, pages // EVICTED_AT_ONCE)
    with quiet():
        times = [clock(lambda: cache.evict(EVICTED_AT_ONCE)) for _ in range(repeats)]
    return {"a page": [each / EVICTED_AT_ONCE for each in times]}


def evict_one(leaves: int, repeats: int) -> Samples:
    """Averaged over the pages of a leaf, since the last of them takes the leaf along."""
    cache = with_leaves(leaves)

    def evict_leaf() -> None:
        for _ in range(LEAF_BLOCKS):
            cache.evict(1)

    with quiet():
        return {"evict(1)": [clock(evict_leaf) / LEAF_BLOCKS for _ in range(repeats)]}


def memory(leaves: int, repeats: int) -> Samples:
    """Bytes a leaf, beyond the bytes in its key and in its row of pages."""
    cache = PrefixCache(4 * leaves, PAGE)
    rng = random.Random(leaves)
    gc.collect()
    tracemalloc.start()
    for _ in range(leaves):
        serve(cache, sequence(rng, PAGE))
    gc.collect()
    total = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    nodes = list(walk(cache.tree.roots[b""]))
    content = sum(len(node.key) + len(node.pages) * node.pages.itemsize for node in nodes)
    objects = sum(sys.getsizeof(node.key) + sys.getsizeof(node.pages) for node in nodes)
    return {
        "beside key and page bytes": [(total - content) / leaves],
        "beside key and page objects": [(total - objects) / leaves],
    }


def step(running: int, repeats: int) -> Samples:
    """One step of ``running`` requests that decode after prompts of about 1,000 tokens.

    In each step one in ``PAGE`` of them completes a block and one in ``PAGE`` needs a page.
    """
    rng = random.Random(running)
    budget = max(running * 1024, 8192)
    config = EngineConfig(page_size=PAGE, max_num_seqs=running, max_num_batched_tokens=budget)
    cache = PrefixCache(running * 120, PAGE)
    scheduler = Scheduler(cache, config, max_model_len=4000)
    for number in range(running):
        sampling = SamplingParams(max_tokens=repeats + 10, temperature=0.0)
        scheduler.add(str(number), bytes(sequence(rng, 1000 + number % PAGE)), sampling)
    samples: Samples = {"together": [], "plan": [], "arrays": [], "commit": []}
    with quiet():
        for _ in range(repeats):
            start = perf_counter()
            plan = scheduler.plan()
            assert plan is not None
            planned = perf_counter()
            paged_batch(plan, PAGE)
            built = perf_counter()
            sampled = [(Sampled(rng.randrange(1000)),) for _ in plan.rows]
            ready = perf_counter()
            scheduler.commit(plan, sampled)
            parts = (planned - start, built - planned, perf_counter() - ready)
            for series, seconds in zip(samples, (sum(parts), *parts), strict=True):
                samples[series].append(seconds * 1e6)
    return {series: values[1:] for series, values in samples.items()}


STUDIES = (
    Study(
        "match and pin 100k cached tokens",
        "edges of the path",
        "µs",
        (1, 10, 30, 100, 300, 1000),
        lambda edges, repeats: match(TRUNK, edges, repeats),
        limit=lambda edges: max(50.0, edges / 2),
    ),
    Study(
        "match and pin at 10 edges",
        "cached tokens",
        "µs",
        (1000, 10_000, 100_000, 1_000_000),
        lambda tokens, repeats: match(tokens, 10, repeats),
    ),
    Study(
        "insert 1,000 tokens",
        "leaves beside it",
        "µs",
        (1000, 5000, 20_000, 50_000),
        lambda leaves, repeats: insert(with_leaves(leaves, blocks=1, spare=30_000), 1000, repeats),
        limit=lambda leaves: 100.0,
    ),
    Study(
        "insert beside 1,000 leaves",
        "new tokens",
        "µs",
        (100, 1000, 10_000, 100_000),
        lambda tokens, repeats: insert(
            with_leaves(1000, spare=repeats * (tokens // PAGE + 1) + 1), tokens, repeats
        ),
        limit=lambda tokens: 100.0,
    ),
    Study(
        f"evict {EVICTED_AT_ONCE} pages from leaves of {LEAF_BLOCKS}, each",
        "pages",
        "µs",
        (10_000, 100_000, 1_000_000),
        evict_many,
        limit=lambda pages: 2.0,
    ),
    Study("evict(1)", "leaves", "µs", (1000, 5000, 20_000, 50_000), evict_one, times_first=3.0),
    Study(
        "Python memory of a leaf",
        "leaves",
        "B",
        (1000, 10_000, 50_000),
        memory,
        limit=lambda leaves: 350.0,
    ),
    Study(
        "plan, arrays and commit of a decode step",
        "running requests",
        "µs",
        (8, 32, 64, 128, 256),
        step,
        limit=lambda running: 300.0,
    ),
)


# How it is run and shown


def point(study: Study, size: int, samples: Samples, first: float | None) -> dict[str, Any]:
    """Median and best of each series; the limit and whether the first series holds it."""
    median = {series: statistics.median(values) for series, values in samples.items()}
    limit = study.limit(size) if study.limit else None
    if study.times_first and first is not None:
        limit = study.times_first * first
    measured = next(iter(median.values()))
    return {
        "size": size,
        "median": median,
        "best": {series: min(values) for series, values in samples.items()},
        "limit": limit,
        "met": None if limit is None else measured <= limit,
    }


def run_studies(results: dict[str, Any], *, quick: bool) -> None:
    work = [(study, size) for study in STUDIES for size in study.sizes]
    with tqdm(work, desc="costs", unit="point", disable=None) as bar:
        for study, size in bar:
            bar.set_postfix_str(f"{study.name}, {size:,} {study.x}")
            samples = study.measure(size, 30 if quick else 200)
            each = results["studies"].setdefault(
                study.name, {"x": study.x, "unit": study.unit, "points": []}
            )
            points = each["points"]
            first = next(iter(points[0]["median"].values())) if points else None
            points.append(point(study, size, samples, first))


def run_oracle(results: dict[str, Any], operations: int) -> None:
    """Random operations beside an oracle, with a full check after each; a fault raises."""
    seen: Counter[str] = Counter()
    start = perf_counter()
    with tqdm(total=operations, desc="random operations", unit="op", disable=None) as bar:
        for first in range(0, operations, EPISODE):
            count = min(EPISODE, operations - first)
            seen += run(count, seed=first)
            bar.update(count)
            done, seconds = first + count, perf_counter() - start
            results["oracle"] = {"operations": done, "seconds": seconds, "seen": dict(seen)}


def machine() -> dict[str, Any]:
    """Where and when this was measured."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(models),
        "load": getloadavg()[0],
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def draw(results: dict[str, Any], path: Path) -> Path:
    """One small panel a study, and one for what the random operations met."""
    studies, oracle = results["studies"], results["oracle"]
    figure, axes = plot.panels(len(studies) + bool(oracle), title=str(results["machine"]["cpu"]))
    for panel, (name, study) in zip(axes, studies.items(), strict=False):
        plot.style(panel, title=name, x=study["x"], y=study["unit"])
        points = study["points"]
        sizes = [each["size"] for each in points]
        for series in points[0]["median"]:
            medians = [each["median"][series] for each in points]
            panel.plot(sizes, medians, marker="o", markersize=3, linewidth=1.2, label=series)
        limits = {each["size"]: each["limit"] for each in points if each["limit"] is not None}
        if limits:
            plot.limit(panel, list(limits), list(limits.values()))
        panel.set_xscale("log")
        if study["unit"] == "µs":
            panel.set_yscale("log")
        else:
            panel.set_ylim(bottom=0)
        panel.legend(fontsize=7, frameon=False)
    if oracle:
        title = f"what {oracle['operations']:,} random operations met"
        panel = plot.style(axes[-1], title=title, x="times")
        seen = sorted(oracle["seen"].items(), key=lambda each: each[1])
        panel.barh([what for what, _ in seen], [times for _, times in seen], color=plot.COLOURS[0])
        panel.set_xscale("log")
        panel.tick_params(axis="y", labelsize=6)
    return plot.save(figure, path)


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """The worst point of each study that has a limit."""
    worst = {}
    for name, study in results["studies"].items():
        bound = [each for each in study["points"] if each["limit"] is not None]
        if bound:
            most = max(bound, key=lambda each: next(iter(each["median"].values())) / each["limit"])
            median, best = (next(iter(most[kind].values())) for kind in ("median", "best"))
            worst[name] = {
                **{study["x"]: most["size"], "median": round(median, 2), "best": round(best, 2)},
                **{"limit": round(most["limit"], 2), "unit": study["unit"], "met": most["met"]},
            }
    return {
        "complete": results["complete"],
        "worst": worst,
        "operations": results["oracle"].get("operations", 0),
    }


def main(
    quick: Annotated[bool, typer.Option(help="Fewer samples and operations.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("bench/results"),
    operations: Annotated[
        int | None, typer.Option(help="Random operations; 1,000,000, or 20,000 when quick.")
    ] = None,
) -> None:
    """Measure; print the worst points as JSON in the last line."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {"machine": machine(), "complete": False, "studies": {}, "oracle": {}}
    try:
        run_studies(results, quick=quick)
        run_oracle(results, operations or (20_000 if quick else 1_000_000))
        results["complete"] = True
    except KeyboardInterrupt:
        sys.stderr.write("stopped; what was measured so far is kept\n")
    out.mkdir(parents=True, exist_ok=True)
    path = out / ("tree-quick.json" if quick else "tree.json")
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    draw(results, path)
    sys.stdout.write(json.dumps(summary(results), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    typer.run(main)
