"""Memory that a run keeps for ever, told from a table that grows once and from other threads'."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any


def held() -> int:
    """Bytes that Python holds now, after a collection."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def growths(scenario: Coroutine[Any, Any, list[int]]) -> list[int]:
    """Bytes between each two of the measures (of ``held``) that a scenario returns.

    What each request leaves behind makes all of them large; what something else takes meanwhile, or
    a table that doubles, one.
    """
    tracemalloc.start()
    try:
        measures = asyncio.run(scenario)
    finally:
        tracemalloc.stop()
    grown = [after - before for before, after in pairwise(measures)]
    assert len(grown) > 2, "too few to tell one from all"
    return grown
