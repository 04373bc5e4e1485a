"""The prefix cache, seen from outside: ``/v1/cache/...`` and ``POST /reset_prefix_cache``."""

from __future__ import annotations

from time import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.cache.namespace import of_tenant
from radixserve.cache.purge import Purge
from radixserve.engine.messages import EngineStats
from radixserve.server.errors import ApiError
from radixserve.server.keeping import check_session
from radixserve.server.limits import Raws, read_json
from radixserve.server.parameters import narrowed
from radixserve.server.service import Service
from radixserve.server.tenants.meter import Meter
from radixserve.server.tenants.visit import Visit, forbidden
from radixserve.server.wire import Json, absent, invalid

SELF = "self"
LARGEST_PURGE = 2**16
"""Bytes of a body that says what to forget."""


class PurgeRequest(msgspec.Struct, kw_only=True):
    """Which requests' prefixes are to be forgotten. A salt is a secret, and stands in no path."""

    cache_salt: str | None = None
    extra_key: str | None = None
    tenant: str | None = None
    """Whose; of others only an administrator's to say."""


class Salt(msgspec.Struct, kw_only=True):
    """What the requests of a session had beside its name."""

    cache_salt: str | None = None
    extra_key: str | None = None


NO_SALT = Salt()


async def cache_stats(request: Request) -> Response:
    """What the cache is, what it holds and what it has been good for, as of the last step.

    ``reuse`` is None before the first prompt. Prompt tokens count once a request, however often it
    was preempted. A tenant is told what it has used itself: how full the cache is tells of others.
    """
    service: Service = request.app.state.service
    visit: Visit = request.state.visit
    card = service.frontend.card
    facts = {
        "prefix_cache": card.prefix_cache,
        "page_size": card.page_size,
        "kv_cache_dtype": card.kv_cache_dtype,
    }
    own = not visit.may("metrics")
    return Json(facts | (_own(visit.meter) if own else _all(service.frontend.stats())))


def _all(stats: EngineStats) -> dict[str, Any]:
    asked, cached = stats.prompt_tokens, stats.cached_tokens
    return {
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
            "computed": asked - cached,
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


def _own(meter: Meter) -> dict[str, Any]:
    totals = meter.totals
    asked, cached = totals.prompt_tokens, totals.cached_tokens
    return {
        "tokens": {
            "prompt": asked,
            "cached": cached,
            "computed": asked - cached,
            "generated": totals.completion_tokens,
        },
        "reuse": cached / asked if asked else None,
        "requests": {"running": meter.running},
    }


async def reset_prefix_cache(request: Request) -> Response:
    """Says what it did, in pages: those that are free now, and those that running requests still
    hold, which nobody else finds any more and which come back when these end."""
    service: Service = request.app.state.service
    purge = await service.frontend.reset_prefix_cache()
    service.memory.clear()
    service.explainer.trail.wipe("reset", time())
    return Json({"success": True, "dropped_pages": purge.dropped, "held_pages": purge.held})


async def purge_tenant(request: Request) -> Response:
    """Forgets all of one tenant; a tenant may forget its own, which it may also call ``self``."""
    service: Service = request.app.state.service
    name = _whose(request, request.path_params["tenant"])
    purge = await service.frontend.reset_prefix_cache([name])
    service.memory.forget(name)
    service.explainer.trail.wipe("purged", time(), tenant=name)
    return _purged(name, purge)


async def purge_session(request: Request) -> Response:
    """Forgets what was asked with exactly this ``cache_salt`` and ``extra_key``; one that is left
    out is one that was not sent."""
    service: Service = request.app.state.service
    fields, raws = await read_json(request, PurgeRequest, LARGEST_PURGE)
    _check_known(raws, PurgeRequest)
    if fields.cache_salt is None and fields.extra_key is None:
        message = "Send cache_salt, extra_key or both, as the requests to forget had them"
        raise invalid(
            "cache_salt", f"{message}; DELETE /v1/cache/tenants/self forgets all of a tenant"
        )
    narrow = narrowed(fields.cache_salt, fields.extra_key)
    name = _whose(request, SELF if fields.tenant is None else fields.tenant)
    namespace = of_tenant(name or None, narrow)
    purge = await service.frontend.purge(namespace)
    service.memory.forget(name, narrow)
    service.explainer.trail.wipe("purged", time(), tenant=name, namespace=namespace)
    return _purged(name, purge)


async def end_session(request: Request) -> Response:
    """Nobody goes on with a conversation of this tenant: what it alone has cached goes before all
    else. A body may say the ``cache_salt`` and ``extra_key`` that its requests had."""
    service: Service = request.app.state.service
    visit: Visit = request.state.visit
    session = request.path_params["session"]
    check_session(session, "session")
    salt = NO_SALT
    if "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0":
        salt, raws = await read_json(request, Salt, LARGEST_PURGE)
        _check_known(raws, Salt)
    narrow = narrowed(salt.cache_salt, salt.extra_key)
    pages = await service.end_session(visit.tenant.name, narrow, session)
    if pages is None:
        raise absent(
            "session",
            f"No session {session[:64]!r} is known: it has ended, no request has named it, "
            "or nothing of it is cached any more",
            "session_not_found",
        )
    return Json({"id": session, "object": "session", "ended": True, "released_pages": pages})


def _check_known(raws: Raws, type_: type[msgspec.Struct]) -> None:
    """Raises ApiError: 400, there is a field that ``type_`` lacks. What was left out on purpose
    cannot be told from what was misspelt."""
    for each in raws:
        if each not in type_.__struct_fields__:
            raise invalid(each, f"{each} is unknown here: nothing was forgotten")


def _purged(name: str, purge: Purge) -> Response:
    pages = {"dropped_pages": purge.dropped, "held_pages": purge.held}
    return Json({"success": True, "tenant": name, **pages})


def _whose(request: Request, name: str) -> str:
    """The tenant called ``name`` whose cache this request may forget.

    Raises:
        ApiError: 403, it is somebody else, and no administrator asks; 404, there is nobody.
    """
    service: Service = request.app.state.service
    visit: Visit = request.state.visit
    own = visit.tenant.name
    if name == SELF:
        return own
    if name != own:
        if not visit.tenant.admin:
            raise forbidden("Only an administrator may forget what others have cached.")
        if name not in service.tenants.tenants:
            raise ApiError(
                status=404,
                message=f"There is no tenant {name[:64]!r}.",
                code="tenant_not_found",
            )
    return name
