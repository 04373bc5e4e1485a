"""What is cached of a prompt, without touching it."""

from __future__ import annotations

from radixserve.cache.namespace import on_engine
from radixserve.engine.core import EngineCore
from radixserve.engine.messages import Look, Looked


def look(core: EngineCore, asked: Look) -> Looked:
    """What a request with these tokens would find now. Costs what admitting it would."""
    cache = core.cache
    namespace = on_engine(core.runner.info.kv_format, asked.namespace)
    found = cache.peek(asked.tokens, namespace, limit=asked.limit)
    missed = cache.missed(asked.tokens, found.blocks, asked.tenant, limit=asked.limit)
    return Looked(found.blocks, found.copied, missed)
