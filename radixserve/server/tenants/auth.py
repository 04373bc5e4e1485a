"""Who asks: an API key with every request, but for those that tell nothing."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixserve.server.errors import ApiError
from radixserve.server.fields import is_yes
from radixserve.server.tenants.visit import Visit
from radixserve.tenants.file import EVERYBODY, Tenant
from radixserve.tenants.keys import LONGEST_KEY

if TYPE_CHECKING:
    from radixserve.server.service import Service


ACTING_FOR = "radixserve.tenant"
EXPLAIN_HEADER = "x-radixserve-explain"
"""Asks for what the field ``explain`` asks for."""


def acting_for(app: ASGIApp, tenant: str) -> ASGIApp:
    """``app`` for requests that the server itself makes in a tenant's name, without its key.

    It says so in the scope's state, where nothing that a client sends can get.
    """

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {**scope.get("state", {}), ACTING_FOR: tenant}}, receive, send)

    return inner


class Authentication:
    """Makes the ``Visit`` of every request that comes with a key, and refuses the others.

    On an open server nobody needs a key, and whatever is sent as one is not looked at.

    Args:
        open_routes: need none; everything else does, also what does not exist.
    """

    def __init__(self, app: ASGIApp, service: Service, open_routes: Sequence[BaseRoute]):
        self._app = app
        self._service = service
        self._open = open_routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        try:
            tenant = self._tenant(scope)
            explain = is_yes(Headers(scope=scope), EXPLAIN_HEADER)
        except ApiError as error:
            await error.response(scope)(scope, receive, send)
            self._service.audit.note(scope, None, perf_counter() - started)
            return
        meter = self._service.tenants.meter(tenant)
        state = scope["state"]
        visit = state["visit"] = Visit(tenant, meter, state["tally"], told_by=state["told_by"])
        visit.tally.explain = explain

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(visit.headers())
            await send(message)

        try:
            await self._app(scope, receive, marked)
        finally:
            visit.leave()
            self._service.metrics.tenants.count(self._service.frontend.card.name, visit)
            self._service.audit.note(scope, visit, perf_counter() - started)

    def _is_open(self, scope: Scope) -> bool:
        return any(route.matches(scope)[0] is not Match.NONE for route in self._open)

    def _tenant(self, scope: Scope) -> Tenant:
        registry = self._service.tenants
        if registry.roster is None:
            return EVERYBODY
        name = scope["state"].get(ACTING_FOR)
        if name is not None:
            tenant = registry.tenants.get(name)
        else:
            tenant = registry.holder(sent_key(Headers(scope=scope)))
        if tenant is None:
            raise unauthorized("The API key is not valid.")
        return tenant


def sent_key(headers: Headers) -> str:
    """The key that came with a request.

    Raises:
        ApiError: 401, there is none, or none that could be one; 400, there are several.
    """
    bearers, plain = headers.getlist("authorization"), headers.getlist("x-api-key")
    for name, values in (("Authorization", bearers), ("x-api-key", plain)):
        if len(values) > 1:
            raise _ambiguous(f"The header {name} was sent {len(values)} times.")
    keys = {_bearer(value) for value in bearers} | {value.strip() for value in plain}
    if len(keys) > 1:
        raise _ambiguous("Authorization and x-api-key hold different keys.")
    key = keys.pop() if keys else ""
    if not key:
        raise unauthorized(
            "An API key is needed: send the header `Authorization: Bearer KEY` or `x-api-key: KEY`."
        )
    if len(key) > LONGEST_KEY:
        raise unauthorized(f"The API key is longer than {LONGEST_KEY} characters; none is.")
    return key


def unauthorized(message: str) -> ApiError:
    return ApiError(
        status=401,
        message=message,
        type="authentication_error",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def _bearer(value: str) -> str:
    scheme, _, key = value.strip().partition(" ")
    if scheme.lower() != "bearer":
        raise unauthorized("The header Authorization must be `Bearer KEY`; other schemes are not.")
    return key.strip()


def _ambiguous(message: str) -> ApiError:
    return ApiError(
        status=400,
        message=f"{message} Send one API key, once.",
        type="authentication_error",
        code="several_api_keys",
    )
