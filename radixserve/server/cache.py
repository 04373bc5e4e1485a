"""The prefix cache, seen from outside: ``/v1/cache/...`` and ``POST /reset_prefix_cache``."""

from __future__ import annotations

from time import time
from typing import Any, ClassVar

from radixserve.cache.namespace import of_tenant
from radixserve.cache.purge import Purge
from radixserve.engine.messages import EngineStats
from radixserve.server.endpoint import Call
from radixserve.server.errors import absent, invalid, wrong
from radixserve.server.fields import Body
from radixserve.server.keeping import check_session
from radixserve.server.parameters import narrowed
from radixserve.server.tenants.meter import Meter
from radixserve.server.tenants.visit import forbidden

SELF = "self"


class Salt(Body, kw_only=True):
    """What requests had besides. A salt is a secret, and stands in no path."""

    limit: ClassVar[int | None] = 2**16

    cache_salt: str | None = None
    extra_key: str | None = None


class PurgeRequest(Salt, kw_only=True):
    """Which requests' prefixes are to be forgotten."""

    tenant: str | None = None
    """Whose; of others only an administrator's to say."""


async def cache_stats(call: Call) -> dict[str, Any]:
    """What the cache is, what it holds and what it has been good for, as of the last step.

    ``reuse`` is None before the first prompt. Prompt tokens count once a request, however often it
    was preempted. A tenant is told what it has used itself: how full the cache is tells of others.
    """
    card = call.service.frontend.card
    facts = {
        "prefix_cache": card.prefix_cache,
        "page_size": card.page_size,
        "kv_cache_dtype": card.kv_cache_dtype,
    }
    own = not call.visit.may("metrics")
    return facts | (_own(call.visit.meter) if own else _all(call.service.frontend.stats()))


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


async def reset_prefix_cache(call: Call) -> dict[str, Any]:
    """Says what it did, in pages: those that are free now, and those that running requests still
    hold, which nobody else finds any more and which come back when these end."""
    service = call.service
    purge = await service.frontend.reset_prefix_cache()
    service.memory.clear()
    service.explainer.trail.wipe("reset", time())
    return _purged(purge)


async def purge_tenant(call: Call, tenant: str) -> dict[str, Any]:
    """Forgets all of one tenant; a tenant may forget its own, which it may also call ``self``."""
    service = call.service
    name = _whose(call, tenant)
    purge = await service.frontend.reset_prefix_cache([name])
    service.memory.forget(name)
    service.explainer.trail.wipe("purged", time(), tenant=name)
    return _purged(purge, tenant=name)


async def purge_session(call: Call, fields: PurgeRequest) -> dict[str, Any]:
    """Forgets what was asked with exactly this ``cache_salt`` and ``extra_key``; one that is left
    out is one that was not sent."""
    service = call.service
    _check_known(call)
    if fields.cache_salt is None and fields.extra_key is None:
        message = "Send cache_salt, extra_key or both, as the requests to forget had them"
        raise invalid(
            "cache_salt", f"{message}; DELETE /v1/cache/tenants/self forgets all of a tenant"
        )
    narrow = narrowed(fields.cache_salt, fields.extra_key)
    name = _whose(call, SELF if fields.tenant is None else fields.tenant)
    namespace = of_tenant(name or None, narrow)
    purge = await service.frontend.purge(namespace)
    service.memory.forget(name, narrow)
    service.explainer.trail.wipe("purged", time(), tenant=name, namespace=namespace)
    return _purged(purge, tenant=name)


async def end_session(call: Call, session: str) -> dict[str, Any]:
    """Nobody goes on with a conversation of this tenant: what it alone has cached goes before all
    else. A body may say the ``cache_salt`` and ``extra_key`` that its requests had."""
    check_session(session, "session")
    salt = Salt()
    if "transfer-encoding" in call.headers or call.headers.get("content-length", "0") != "0":
        salt = await call.read(Salt)
        _check_known(call)
    narrow = narrowed(salt.cache_salt, salt.extra_key)
    pages = await call.service.end_session(call.tenant, narrow, session)
    if pages is None:
        raise absent(
            "session",
            f"No session {session[:64]!r} is known: it has ended, no request has named it, "
            "or nothing of it is cached any more",
            "session_not_found",
        )
    return {"id": session, "object": "session", "ended": True, "released_pages": pages}


def _check_known(call: Call) -> None:
    """Raises ApiError: 400, there is a field without effect. What was left out on purpose cannot be
    told from what was misspelt."""
    for each in call.visit.ignored:
        raise wrong(each, "is unknown here: nothing was forgotten")


def _purged(purge: Purge, **whose: str) -> dict[str, Any]:
    return {"success": True, **whose, "dropped_pages": purge.dropped, "held_pages": purge.held}


def _whose(call: Call, name: str) -> str:
    """The tenant called ``name`` whose cache this request may forget.

    Raises:
        ApiError: 403, it is somebody else, and no administrator asks; 404, there is nobody.
    """
    if name == SELF:
        return call.tenant
    if name != call.tenant:
        if not call.visit.tenant.admin:
            raise forbidden("Only an administrator may forget what others have cached.")
        if name not in call.service.tenants.tenants:
            raise absent(None, f"There is no tenant {name[:64]!r}", "tenant_not_found")
    return name
