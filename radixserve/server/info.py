"""What the server runs with, and how busy it is, under the names that routers and benchmarks ask
for: ``/health``, ``/version``, ``/server_info``, ``/get_model_info``, ``/load``, ``/metrics``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from starlette.requests import Request
from starlette.responses import Response

import radixserve
from radixserve.server.endpoint import Call
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


async def server_info(call: Call) -> dict[str, Any]:
    """The settings, and the engine's counts as of its last step."""
    card, stats = call.service.frontend.card, call.service.frontend.stats()
    return {
        "version": radixserve.__version__,
        "model": card.name,
        "served_model_name": card.name,
        "max_model_len": card.max_model_len,
        "max_queue": call.service.settings.max_queue,
        "pages_total": stats.pages_total,
        "pages_free": stats.pages_free,
        "pages_evictable": stats.pages_evictable,
        "running": stats.running,
        "waiting": stats.waiting,
        "engine_restarts": stats.restarts,
        "internal_states": [],
    }


async def model_info(call: Call) -> dict[str, Any]:
    card = call.service.frontend.card
    return {"model_path": card.name, "is_generation": True, "max_model_len": card.max_model_len}


async def load(call: Call) -> dict[str, Any]:
    """``server_load``, vLLM's name, is how many requests run and wait; ``pending_tokens`` the work
    that is in them, without what is cached."""
    stats = call.service.frontend.stats()
    return {
        "server_load": stats.running + stats.waiting,
        "running": stats.running,
        "waiting": stats.waiting,
        "pending_tokens": stats.pending_tokens,
    }


async def metrics(call: Call) -> Response:
    """For Prometheus, in the format that the scraper accepts."""
    encode, content_type = choose_encoder(call.headers.get("accept", ""))
    # No name of ours needs to be escaped; the library would make underscores of their colons.
    shown = cast("Callable[..., bytes]", encode)(call.service.metrics.shown, escaping=ALLOWUTF8)
    return Response(shown, headers={"content-type": content_type})
