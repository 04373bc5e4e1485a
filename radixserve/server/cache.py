"""The prefix cache, seen from outside: ``/v1/cache/...`` and ``POST /reset_prefix_cache``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from radixserve.server.service import Service


async def cache_stats(request: Request) -> Response:
    """What the cache is, what it holds and what it has been good for, as of the last step.

    ``reuse`` is None before the first prompt. Prompt tokens count once a request, however often it
    was preempted.
    """
    service: Service = request.app.state.service
    card, stats = service.frontend.card, service.frontend.stats()
    asked, cached = stats.prompt_tokens, stats.cached_tokens
    return JSONResponse(
        {
            "prefix_cache": card.prefix_cache,
            "page_size": card.page_size,
            "kv_cache_dtype": card.kv_cache_dtype,
            "pages": {
                "total": stats.pages_total,
                "free": stats.pages_free,
                "cached": stats.pages_evictable,
                "in_use": stats.pages_total - stats.pages_free - stats.pages_evictable,
                "evicted": stats.evicted_pages,
            },
            "tokens": {
                "prompt": asked,
                "cached": cached,
                "computed": stats.computed_tokens,
                "generated": stats.generated_tokens,
            },
            "reuse": cached / asked if asked else None,
            "nodes": stats.radix_nodes,
            "requests": {
                "running": stats.running,
                "waiting": stats.waiting,
                "preemptions": stats.preemptions,
            },
        }
    )


async def reset_prefix_cache(request: Request) -> Response:
    """Says what it did, in pages: those that are free now, and those that running requests still
    hold, which nobody else finds any more and which come back when these end."""
    service: Service = request.app.state.service
    purge = await service.frontend.reset_prefix_cache()
    return JSONResponse({"success": True, "dropped_pages": purge.dropped, "held_pages": purge.held})
