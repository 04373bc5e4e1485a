"""What only the inside of an engine can tell: useful KV memory, and the time of the tree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

from tqdm import tqdm

from bench.workloads import Lengths, Workload, poisson
from radixserve.cache.lease import Lease
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.config import EngineConfig
from radixserve.engine.llm import LLM
from radixserve.scheduling.plan import Sampled
from radixserve.scheduling.sampling import SamplingParams
from radixserve.scheduling.scheduler import Scheduler
from radixserve.tokens import pack

TREE_CALLS = {
    PrefixCache: ("reserve", "peek", "begin_step", "end_step"),
    Lease: ("extend", "publish", "release", "copied", "fork"),
}
"""Where the scheduler enters the cache; what these call in turn is part of them."""


def useful_kv(lengths: Lengths, *, requests: int, page_size: int, seqs: int = 64) -> dict[str, Any]:
    """The share of KV slots, in pages that running requests hold, that hold tokens of theirs.

    A real scheduler and cache run ``requests`` of unscaled ``lengths``, all queued at the start,
    with no model behind them, since which slots are filled does not depend on its output. After
    each step: tokens whose KV is computed, over slots of the distinct pages that leases hold.
    """
    config = EngineConfig(page_size=page_size, max_num_seqs=seqs)
    cache = PrefixCache(1 + seqs * 4096 // page_size, page_size)
    scheduler = Scheduler(cache, config, max_model_len=8192)
    workload = poisson(lengths, requests=requests, rate=1e9, longest=2048, name="kv")
    for number, turn in enumerate(workload.turns):
        sampling = SamplingParams(max_tokens=turn.output, temperature=0, ignore_eos=True)
        scheduler.add(str(number), pack(turn.prompt), sampling)
    fresh = count()
    tokens = slots = steps = 0
    while (plan := scheduler.plan()) is not None:
        sampled = [(Sampled(next(fresh) % 30_000),) if row.sampling else () for row in plan.rows]
        scheduler.commit(plan, sampled)
        leases = [each.lease for each in scheduler.running.by_rank() if each.lease is not None]
        tokens += sum(lease.computed for lease in leases)
        slots += len({page for lease in leases for page in lease.pages}) * page_size
        steps += 1
    return {"page_size": page_size, "share": tokens / slots, "steps": steps, "requests": requests}


@dataclass(slots=True)
class Spans:
    """Time spent inside the cache."""

    seconds: float = 0.0
    calls: int = 0
    depth: int = 0


@contextmanager
def tree_spans() -> Iterator[Spans]:
    """Adds up the time of ``TREE_CALLS`` of all caches; a call within a call counts once."""
    spans = Spans()
    originals = [
        (owner, name, getattr(owner, name)) for owner in TREE_CALLS for name in TREE_CALLS[owner]
    ]
    for owner, name, original in originals:
        setattr(owner, name, _timed(original, spans))
    try:
        yield spans
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _timed(original: Callable[..., Any], spans: Spans) -> Callable[..., Any]:
    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if spans.depth:
            return original(*args, **kwargs)
        spans.depth += 1
        start = perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spans.seconds += perf_counter() - start
            spans.calls += 1
            spans.depth -= 1

    return timed


def overhead(llm: LLM, workload: Workload, repeats: int, *, until: float) -> dict[str, Any]:
    """What the cache costs where it cannot help.

    ``workload`` must share nothing. It runs ``repeats`` times with and without the cache in one
    engine, alternating, the order turned around each time; the tree's own time is that of the runs
    with it. Spread is the largest distance between two runs of the same kind. No repeat but the
    first begins after the ``perf_counter`` moment ``until``.
    """
    seconds: dict[bool, list[float]] = {True: [], False: []}
    inside = []
    _run(llm, workload)
    for repeat in tqdm(range(repeats), desc="cache on and off", leave=False, disable=None):
        if repeat and perf_counter() > until:
            break
        for enabled in (True, False) if repeat % 2 else (False, True):
            llm.reset_prefix_cache()
            llm.core.cache.enabled = enabled
            with tree_spans() as spans:
                seconds[enabled].append(_run(llm, workload))
            if enabled:
                inside.append(spans.seconds / seconds[enabled][-1])
    llm.core.cache.enabled = True
    on, off = median(seconds[True]), median(seconds[False])
    spread = max(max(each) - min(each) for each in seconds.values())
    return {
        "tree_share": median(inside),
        "repeats": len(inside),
        "seconds_on": seconds[True],
        "seconds_off": seconds[False],
        "median_on": on,
        "median_off": off,
        "difference": on / off - 1,
        "spread": spread / off,
        "scale": workload.scale,
    }


def _run(llm: LLM, workload: Workload) -> float:
    outputs = {turn.output for turn in workload.turns}
    if len(outputs) != 1:
        raise ValueError("every answer must be of the same length")
    sampling = SamplingParams(max_tokens=outputs.pop(), temperature=0, ignore_eos=True)
    start = perf_counter()
    llm.generate([turn.prompt for turn in workload.turns], sampling)
    return perf_counter() - start
