"""``GET /health``, ``/ping`` and ``/version``: is it alive, and what is it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import radixserve
from radixserve.server.service import Service


async def health(request: Request) -> Response:
    """200 and no body while the step loop lives, 503 afterwards."""
    service: Service = request.app.state.service
    return Response(status_code=200 if service.frontend.healthy() else 503)


async def version(request: Request) -> Response:
    return JSONResponse({"version": radixserve.__version__})
