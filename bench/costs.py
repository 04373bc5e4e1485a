"""What the tree and the scheduler cost over a growing size, beside what they may cost."""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from radixserve.attention.arrays import paged_batch
from radixserve.cache.namespace import Namespace, of_tenant, on_engine
from radixserve.cache.node import walk
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.config import EngineConfig
from radixserve.scheduling.plan import Sampled
from radixserve.scheduling.sampling import SamplingParams
from radixserve.scheduling.scheduler import Scheduler
from radixserve.tokens import TOKEN_BYTES

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


def namespace(salt: int, repeats: int) -> Samples:
    """Of a tenant's request with a salt of ``salt`` bytes: the client's part, made the tenant's own
    in the server, and that of the KV's format in the engine."""
    sent = "s" * salt

    def make() -> None:
        for _ in range(100):
            on_engine("fp8 1", of_tenant("acme", Namespace(salt=sent).key()))

    with quiet():
        return {"a request": [clock(make) / 100 for _ in range(repeats)]}


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
        "make a namespace",
        "bytes of salt",
        "µs",
        (8, 64, 512),
        namespace,
        limit=lambda salt: 2.0,
    ),
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
