"""The prefix cache that an engine's settings ask for."""

from __future__ import annotations

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.config import EngineConfig


def new_cache(num_pages: int, config: EngineConfig) -> PrefixCache:
    """An empty cache of ``num_pages`` pages, the scratch page included."""
    return PrefixCache(
        num_pages,
        config.page_size,
        enabled=config.prefix_cache,
        keep=config.keep_share,
        adaptive=config.prefix_cache and config.cache_policy == "adaptive",
    )
