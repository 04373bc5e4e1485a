"""What an eviction costs by age alone and by the adaptive rule, in turns, in full caches."""

from __future__ import annotations

import random
import statistics
from time import perf_counter
from typing import Any

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import TOKEN_BYTES

PAGES = 40_000
LENGTH = 16
"""Pages, of one token, of a prompt."""
EVICTED = 256
"""One after the other in a round."""
ROUNDS = 60
WAIT = 0.01
"""Seconds between prompts: all are young when they go."""


class Full:
    """A cache that has served twice what it holds."""

    def __init__(self, pages: int, *, adaptive: bool):
        self.cache = PrefixCache(pages + 1, 1, adaptive=adaptive)
        rng = random.Random(0)
        for number in range(2 * pages // LENGTH):
            self.cache.time = WAIT * number
            step = self.cache.begin_step()
            lease = self.cache.reserve(rng.randbytes(LENGTH * TOKEN_BYTES), b"", LENGTH)
            assert lease is not None
            lease.publish(LENGTH)
            lease.release()
            self.cache.end_step(step)
        self._account = self.cache.accounts.of("")

    def evict(self, count: int) -> float:
        """Microseconds for each of ``count`` evictions of a page that somebody needs."""
        cache, account = self.cache, self._account
        before = cache.evicted
        start = perf_counter()
        for _ in range(count):
            cache.take(1, account)
        seconds = perf_counter() - start
        assert cache.evicted == before + count
        return 1e6 * seconds / count


def measure(pages: int = PAGES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Medians over rounds, in microseconds an eviction. ``pages`` must last for all rounds."""
    caches = {name: Full(pages, adaptive=name == "adaptive") for name in ("lru", "adaptive")}
    samples: dict[str, list[float]] = {name: [] for name in caches}
    for number in range(rounds):
        for name in caches if number % 2 else reversed(caches):
            samples[name].append(caches[name].evict(EVICTED))
    return {
        "pages": pages,
        "rounds": rounds,
        "evictions_a_round": EVICTED,
        "microseconds": {name: statistics.median(each) for name, each in samples.items()},
    }
