"""The HTTP application: routes, and what stands around all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from radixserve.engine.frontend import Frontend
from radixserve.errors import RadixServeError
from radixserve.server import cache, info, models, page, prefixes
from radixserve.server.batches import files
from radixserve.server.batches import routes as batches
from radixserve.server.batches.worker import keep_batches, working
from radixserve.server.chat import chat_completions
from radixserve.server.completions import completions
from radixserve.server.embeddings import embeddings
from radixserve.server.endpoint import Call, Endpoint
from radixserve.server.errors import AnswerError, ApiError, CatchAll, answer_with_error
from radixserve.server.generate import generate
from radixserve.server.lookup import cache_request, lookup
from radixserve.server.messages.routes import count_tokens, create_message
from radixserve.server.openapi import openapi
from radixserve.server.prefixes import Prefixes, stay_warm
from radixserve.server.prewarm import prewarm
from radixserve.server.recording import Recorder
from radixserve.server.request_id import RequestId
from radixserve.server.responses import routes as responses
from radixserve.server.responses.create import count_input_tokens, create_response
from radixserve.server.responses.store import Responses
from radixserve.server.service import Service, Settings, cancelled
from radixserve.server.tally import CLIENT_GONE
from radixserve.server.tenants import admin, public
from radixserve.server.tenants.audit import Audit
from radixserve.server.tenants.auth import Authentication
from radixserve.server.tenants.registry import Registry
from radixserve.server.tenants.visit import Need
from radixserve.server.tokenize import detokenize, tokenize
from radixserve.server.tree import cache_tree


def _on(
    operation: str,
    function: Callable[..., Awaitable[Any]],
    need: Need,
    *,
    limited: bool = False,
    first: Callable[[Call], object] | None = None,
) -> Route:
    """A route for those who have ``need``; one that is ``limited`` costs something, and counts
    against the limits of tenants. ``first`` is to hold whatever the body says."""
    method, path = operation.split()
    return Route(path, Endpoint(function, need, limited=limited, first=first), methods=[method])


OPEN: list[BaseRoute] = [
    Route("/health", info.health),
    Route("/ping", info.health, methods=["GET", "POST"]),
    Route("/ready", info.health),
    Route("/version", info.version),
    # Files, which a browser loads before anybody has typed a key into them.
    Route("/", page.page),
    Route("/cache", page.cache_page),
    Mount("/web", page.files()),
]
"""What needs no key."""
TENANTS: list[BaseRoute] = [
    _on("POST /v1/chat/completions", chat_completions, "chat", limited=True),
    _on("POST /v1/completions", completions, "completions", limited=True),
    _on("POST /v1/embeddings", embeddings, "embeddings", limited=True),
    _on("POST /v1/messages", create_message, "chat", limited=True),
    _on("POST /v1/messages/count_tokens", count_tokens, "chat", limited=True),
    _on("POST /v1/responses", create_response, "chat", limited=True),
    _on("POST /v1/responses/input_tokens", count_input_tokens, "chat", limited=True),
    _on("POST /v1/responses/compact", responses.compact_response, "chat"),
    _on("GET /v1/responses/{id}", responses.get_response, "chat"),
    _on("DELETE /v1/responses/{id}", responses.delete_response, "chat"),
    _on("POST /v1/responses/{id}/cancel", responses.cancel_response, "chat"),
    _on("GET /v1/responses/{id}/input_items", responses.list_input_items, "chat"),
    _on("POST /generate", generate, "completions", limited=True),
    _on("POST /tokenize", tokenize, "tokenize", limited=True),
    _on("POST /detokenize", detokenize, "tokenize", limited=True),
    _on("GET /v1/models", models.list_models, "models"),
    _on("GET /v1/models/{name:path}", models.get_model, "models"),
    _on("GET /get_model_info", info.model_info, "models"),
    _on("GET /openapi.json", openapi, "models"),
    _on("POST /v1/files", files.upload_file, "batches"),
    _on("GET /v1/files", files.list_files, "batches"),
    _on("GET /v1/files/{id}", files.get_file, "batches"),
    _on("DELETE /v1/files/{id}", files.delete_file, "batches"),
    _on("GET /v1/files/{id}/content", files.get_content, "batches"),
    _on("POST /v1/batches", batches.create_batch, "batches", first=files.store_of),
    _on("GET /v1/batches", batches.list_batches, "batches"),
    _on("GET /v1/batches/{id}", batches.get_batch, "batches"),
    _on("POST /v1/batches/{id}/cancel", batches.cancel_batch, "batches"),
    _on("GET /v1/cache/stats", cache.cache_stats, "cache"),
    _on("GET /v1/cache/tree", cache_tree, "cache"),
    _on("GET /v1/cache/requests/{id}", cache_request, "cache"),
    _on("POST /v1/cache/lookup", lookup, "cache", limited=True),
    _on("DELETE /v1/cache/tenants/{tenant}", cache.purge_tenant, "cache"),
    _on("POST /v1/cache/purge", cache.purge_session, "cache"),
    _on("POST /v1/cache/prewarm", prewarm, "chat", limited=True),
    _on("DELETE /v1/cache/sessions/{session:path}", cache.end_session, "cache"),
    _on("GET /v1/cache/prefixes", prefixes.list_named, "chat"),
    _on("PUT /v1/cache/prefixes/{prefix}", prefixes.put_prefix, "chat", limited=True),
    _on("POST /v1/cache/prefixes/{prefix}/prewarm", prefixes.warm_prefix, "chat", limited=True),
    _on("DELETE /v1/cache/prefixes/{prefix}", prefixes.drop_prefix, "chat"),
    _on("GET /v1/cache/public", public.list_prefixes, "public_prefixes"),
    _on("PUT /v1/cache/public/{prefix}", public.declare_prefix, "public_prefixes"),
    _on("DELETE /v1/cache/public/{prefix}", public.withdraw_prefix, "public_prefixes"),
]
NUMBERS: list[BaseRoute] = [
    _on("GET /metrics", info.metrics, "metrics"),
    _on("GET /load", info.load, "metrics"),
    _on("GET /server_info", info.server_info, "metrics"),
    _on("GET /get_server_info", info.server_info, "metrics"),
]
"""What tells of all tenants together."""
ADMIN: list[BaseRoute] = [
    _on("POST /reset_prefix_cache", cache.reset_prefix_cache, "admin"),
    _on("POST /flush_cache", cache.reset_prefix_cache, "admin"),
    _on("GET /v1/admin/tenants", admin.list_tenants, "admin"),
    _on("PUT /v1/admin/tenants/{tenant}", admin.put_tenant, "admin"),
    _on("POST /v1/admin/reload", admin.reload_tenants, "admin"),
    _on("GET /v1/admin/usage", admin.usage, "admin"),
]


def create_app(
    frontend: Frontend,
    *,
    settings: Settings | None = None,
    tenants: Registry | None = None,
    audit: Audit | None = None,
    recorder: Recorder | None = None,
    prefixes: Prefixes | None = None,
) -> Starlette:
    """The application that serves ``frontend``, which whoever calls this starts and stops."""
    service = Service(frontend, settings, tenants, audit, recorder)
    app = Starlette(
        routes=[*OPEN, *TENANTS, *NUMBERS, *ADMIN],
        middleware=[
            Middleware(RequestId),
            Middleware(Authentication, service, OPEN),
            Middleware(CatchAll),
        ],
        lifespan=_running,
        exception_handlers={
            ApiError: answer_with_error,
            RadixServeError: answer_with_error,
            AnswerError: answer_with_error,
            HTTPException: answer_with_error,
            ClientDisconnect: _nobody_listens,
        },
    )
    app.router.redirect_slashes = False
    app.state.service = service
    app.state.responses = Responses(service.end_session_soon)
    app.state.prefixes = prefixes or Prefixes()
    for each in (app.state.responses, app.state.prefixes):
        service.tenants.forgetting.append(each.forget)
    keep_batches(app, service)
    return app


@asynccontextmanager
async def _running(app: Starlette) -> AsyncIterator[None]:
    """Batches are worked on meanwhile, and named prefixes are there."""
    warming = asyncio.create_task(stay_warm(app.state.service, app.state.prefixes))
    async with working(app):
        yield
    await cancelled(warming)


async def _nobody_listens(request: Request, error: Exception) -> Response:
    """For the access log; it reaches nobody."""
    return Response(status_code=CLIENT_GONE)
