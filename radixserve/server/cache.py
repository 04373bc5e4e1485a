"""``POST /reset_prefix_cache``: forget what is cached."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from radixserve.server.service import Service


async def reset_prefix_cache(request: Request) -> Response:
    """Says what it did, in pages: those that are free now, and those that running requests still
    hold, which nobody else finds any more and which come back when these end."""
    service: Service = request.app.state.service
    purge = await service.frontend.reset_prefix_cache()
    return JSONResponse({"success": True, "dropped_pages": purge.dropped, "held_pages": purge.held})
