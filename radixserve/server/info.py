"""What the server runs with, and how busy it is, under the names that routers and benchmarks ask
for: ``/server_info``, ``/get_model_info``, ``/load``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

import radixserve
from radixserve.server.service import Service
from radixserve.server.wire import Json


async def server_info(request: Request) -> Response:
    """The settings, and the engine's counts as of its last step."""
    service: Service = request.app.state.service
    card, stats = service.frontend.card, service.frontend.stats()
    return Json(
        {
            "version": radixserve.__version__,
            "model": card.name,
            "served_model_name": card.name,
            "max_model_len": card.max_model_len,
            "max_queue": service.settings.max_queue,
            "pages_total": stats.pages_total,
            "pages_free": stats.pages_free,
            "pages_evictable": stats.pages_evictable,
            "running": stats.running,
            "waiting": stats.waiting,
            "engine_restarts": stats.restarts,
            "internal_states": [],
        }
    )


async def model_info(request: Request) -> Response:
    service: Service = request.app.state.service
    card = service.frontend.card
    return Json(
        {"model_path": card.name, "is_generation": True, "max_model_len": card.max_model_len}
    )


async def load(request: Request) -> Response:
    """``server_load``, vLLM's name, is how many requests run and wait; ``pending_tokens`` the work
    that is in them, without what is cached."""
    service: Service = request.app.state.service
    stats = service.frontend.stats()
    return Json(
        {
            "server_load": stats.running + stats.waiting,
            "running": stats.running,
            "waiting": stats.waiting,
            "pending_tokens": stats.pending_tokens,
        }
    )
