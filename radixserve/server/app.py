"""The HTTP application: routes, and what stands around all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

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
from radixserve.server.cache import (
    cache_stats,
    end_session,
    purge_session,
    purge_tenant,
    reset_prefix_cache,
)
from radixserve.server.chat import chat_completions
from radixserve.server.completions import completions
from radixserve.server.embeddings import embeddings
from radixserve.server.errors import AnswerError, ApiError, CatchAll, answer_with_error
from radixserve.server.generate import generate
from radixserve.server.health import health, version
from radixserve.server.info import load, model_info, server_info
from radixserve.server.lookup import cache_request, lookup
from radixserve.server.messages.routes import count_tokens, create_message
from radixserve.server.metrics import metrics
from radixserve.server.models import get_model, list_models
from radixserve.server.openapi import openapi
from radixserve.server.page import cache_page, files, page
from radixserve.server.prefixes import (
    Prefixes,
    drop_prefix,
    list_named,
    put_prefix,
    stay_warm,
    warm_prefix,
)
from radixserve.server.prewarm import prewarm
from radixserve.server.recording import Recorder
from radixserve.server.request_id import RequestId
from radixserve.server.responses.create import count_input_tokens, create_response
from radixserve.server.responses.routes import (
    cancel_response,
    compact_response,
    delete_response,
    get_response,
    list_input_items,
)
from radixserve.server.responses.store import Responses
from radixserve.server.service import Service, Settings, cancelled
from radixserve.server.tally import CLIENT_GONE
from radixserve.server.tenants import admin
from radixserve.server.tenants.audit import Audit
from radixserve.server.tenants.auth import Access, Authentication
from radixserve.server.tenants.public import declare_prefix, list_prefixes, withdraw_prefix
from radixserve.server.tenants.registry import Registry
from radixserve.server.tenants.visit import Need
from radixserve.server.tokenize import detokenize, tokenize
from radixserve.server.tree import cache_tree

Endpoint = Callable[[Request], Awaitable[Response]]


def _get(path: str, endpoint: Endpoint, need: Need) -> Route:
    return _route(path, endpoint, need, "GET")


def _post(path: str, endpoint: Endpoint, need: Need) -> Route:
    return _route(path, endpoint, need, "POST")


def _route(
    path: str, endpoint: Endpoint, need: Need, method: str, *, limited: bool = False
) -> Route:
    """A route for those who have ``need``."""
    access = Middleware(Access, need, limited=limited)
    return Route(path, endpoint, methods=[method], middleware=[access])


def _limited(path: str, endpoint: Endpoint, need: Need) -> Route:
    """A route whose requests cost something, and count against the limits of tenants."""
    return _route(path, endpoint, need, "POST", limited=True)


OPEN: list[BaseRoute] = [
    Route("/health", health),
    Route("/ping", health, methods=["GET", "POST"]),
    Route("/ready", health),
    Route("/version", version),
    # Files, which a browser loads before anybody has typed a key into them.
    Route("/", page),
    Route("/cache", cache_page),
    Mount("/web", files()),
]
"""What needs no key."""
TENANTS: list[BaseRoute] = [
    _limited("/v1/chat/completions", chat_completions, "chat"),
    _limited("/v1/completions", completions, "completions"),
    _limited("/v1/embeddings", embeddings, "embeddings"),
    _limited("/v1/messages", create_message, "chat"),
    _limited("/v1/messages/count_tokens", count_tokens, "chat"),
    _limited("/v1/responses", create_response, "chat"),
    _limited("/v1/responses/input_tokens", count_input_tokens, "chat"),
    _post("/v1/responses/compact", compact_response, "chat"),
    _get("/v1/responses/{id}", get_response, "chat"),
    _route("/v1/responses/{id}", delete_response, "chat", "DELETE"),
    _post("/v1/responses/{id}/cancel", cancel_response, "chat"),
    _get("/v1/responses/{id}/input_items", list_input_items, "chat"),
    _limited("/generate", generate, "completions"),
    _limited("/tokenize", tokenize, "tokenize"),
    _limited("/detokenize", detokenize, "tokenize"),
    _get("/v1/models", list_models, "models"),
    _get("/v1/models/{name:path}", get_model, "models"),
    _get("/get_model_info", model_info, "models"),
    _get("/openapi.json", openapi, "models"),
    _post("/v1/files", upload_file, "batches"),
    _get("/v1/files", list_files, "batches"),
    _get("/v1/files/{id}", get_file, "batches"),
    _route("/v1/files/{id}", delete_file, "batches", "DELETE"),
    _get("/v1/files/{id}/content", get_content, "batches"),
    _post("/v1/batches", create_batch, "batches"),
    _get("/v1/batches", list_batches, "batches"),
    _get("/v1/batches/{id}", get_batch, "batches"),
    _post("/v1/batches/{id}/cancel", cancel_batch, "batches"),
    _get("/v1/cache/stats", cache_stats, "cache"),
    _get("/v1/cache/tree", cache_tree, "cache"),
    _get("/v1/cache/requests/{id}", cache_request, "cache"),
    _limited("/v1/cache/lookup", lookup, "cache"),
    _route("/v1/cache/tenants/{tenant}", purge_tenant, "cache", "DELETE"),
    _post("/v1/cache/purge", purge_session, "cache"),
    _limited("/v1/cache/prewarm", prewarm, "chat"),
    _route("/v1/cache/sessions/{session:path}", end_session, "cache", "DELETE"),
    _get("/v1/cache/prefixes", list_named, "chat"),
    _route("/v1/cache/prefixes/{prefix}", put_prefix, "chat", "PUT", limited=True),
    _limited("/v1/cache/prefixes/{prefix}/prewarm", warm_prefix, "chat"),
    _route("/v1/cache/prefixes/{prefix}", drop_prefix, "chat", "DELETE"),
    _get("/v1/cache/public", list_prefixes, "public_prefixes"),
    _route("/v1/cache/public/{prefix}", declare_prefix, "public_prefixes", "PUT"),
    _route("/v1/cache/public/{prefix}", withdraw_prefix, "public_prefixes", "DELETE"),
]
NUMBERS: list[BaseRoute] = [
    _get("/metrics", metrics, "metrics"),
    _get("/load", load, "metrics"),
    _get("/server_info", server_info, "metrics"),
    _get("/get_server_info", server_info, "metrics"),
]
"""What tells of all tenants together."""
ADMIN: list[BaseRoute] = [
    _post("/reset_prefix_cache", reset_prefix_cache, "admin"),
    _post("/flush_cache", reset_prefix_cache, "admin"),
    _get("/v1/admin/tenants", admin.list_tenants, "admin"),
    _route("/v1/admin/tenants/{tenant}", admin.put_tenant, "admin", "PUT"),
    _post("/v1/admin/reload", admin.reload_tenants, "admin"),
    _get("/v1/admin/usage", admin.usage, "admin"),
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
    service = Service(
        frontend,
        settings or Settings(),
        tenants or Registry(),
        audit or Audit(),
        recorder or Recorder(),
    )
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
