"""The HTTP application: routes, and what stands around all of them."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from radixserve.engine.frontend import Frontend
from radixserve.errors import RadixServeError
from radixserve.server.batches.files import (
    delete_file,
    get_content,
    get_file,
    list_files,
    upload_file,
)
from radixserve.server.batches.routes import cancel_batch, create_batch, get_batch, list_batches
from radixserve.server.batches.running import keep_batches, working
from radixserve.server.cache import cache_stats, reset_prefix_cache
from radixserve.server.chat import chat_completions
from radixserve.server.completions import completions
from radixserve.server.errors import AnswerError, ApiError, CatchAll, answer_with_error
from radixserve.server.generate import generate
from radixserve.server.health import health, version
from radixserve.server.info import load, model_info, server_info
from radixserve.server.metrics import metrics
from radixserve.server.models import get_model, list_models
from radixserve.server.openapi import openapi
from radixserve.server.page import files, page
from radixserve.server.request_id import CLIENT_GONE, RequestId
from radixserve.server.service import Service, Settings
from radixserve.server.tokenize import detokenize, tokenize


def create_app(frontend: Frontend, *, settings: Settings | None = None) -> Starlette:
    """The application that serves ``frontend``, which whoever calls this starts and stops."""
    app = Starlette(
        routes=[
            Route("/", page),
            Mount("/web", files()),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/v1/models/{name:path}", get_model),
            Route("/health", health),
            Route("/ping", health, methods=["GET", "POST"]),
            Route("/ready", health),
            Route("/version", version),
            Route("/server_info", server_info),
            Route("/get_server_info", server_info),
            Route("/get_model_info", model_info),
            Route("/load", load),
            Route("/generate", generate, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
            Route("/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),
            Route("/v1/files", upload_file, methods=["POST"]),
            Route("/v1/files", list_files),
            Route("/v1/files/{id}", get_file),
            Route("/v1/files/{id}", delete_file, methods=["DELETE"]),
            Route("/v1/files/{id}/content", get_content),
            Route("/v1/batches", create_batch, methods=["POST"]),
            Route("/v1/batches", list_batches),
            Route("/v1/batches/{id}", get_batch),
            Route("/v1/batches/{id}/cancel", cancel_batch, methods=["POST"]),
            Route("/flush_cache", reset_prefix_cache, methods=["POST"]),
            Route("/v1/cache/stats", cache_stats),
            Route("/openapi.json", openapi),
            Route("/metrics", metrics),
        ],
        middleware=[Middleware(RequestId), Middleware(CatchAll)],
        lifespan=working,
        exception_handlers={
            ApiError: answer_with_error,
            RadixServeError: answer_with_error,
            AnswerError: answer_with_error,
            HTTPException: answer_with_error,
            ClientDisconnect: _nobody_listens,
        },
    )
    app.router.redirect_slashes = False
    app.state.service = Service(frontend, settings or Settings())
    keep_batches(app, app.state.service)
    return app


async def _nobody_listens(request: Request, error: Exception) -> Response:
    """For the access log; it reaches nobody."""
    return Response(status_code=CLIENT_GONE)
