"""``GET /health``, ``/ping`` and ``/version``: is it alive, and what is it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

import radixserve
from radixserve.server.service import Service
from radixserve.server.wire import Json


async def health(request: Request) -> Response:
    """200 and no body while requests are taken; 503 while the engine is dead or stuck, and from
    the moment at which the server is told to end."""
    service: Service = request.app.state.service
    well = service.frontend.healthy() and not service.draining
    return Response(status_code=200 if well else 503)


async def version(request: Request) -> Response:
    return Json({"version": radixserve.__version__})
