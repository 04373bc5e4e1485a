"""Endpoints of the API: functions that declare what they take and what they give.

``async def tokenize(call: Call, fields: TokenizeRequest) -> TokenizeResponse`` gets the body as
``fields``, and what varies in its path by the same name. What it returns is sent as JSON, unless it
is a response already. ``/openapi.json`` tells of all this what is written there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar, get_type_hints

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixserve.server.fields import Body, canonical_header, ignored_header, triage
from radixserve.server.keeping import keep_header
from radixserve.server.limits import decode, read_body
from radixserve.server.parameters import check_model
from radixserve.server.service import Service
from radixserve.server.sse import EventStream, Framing
from radixserve.server.tenants.visit import Need, Visit
from radixserve.server.wire import Json

T = TypeVar("T", bound=Body)


class Call(Request):
    """A request of a tenant that has been let in."""

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service

    @property
    def visit(self) -> Visit:
        visit: Visit = self.state.visit
        return visit

    @property
    def tenant(self) -> str:
        """The name of the tenant that asks."""
        return self.visit.tenant.name

    async def read(self, kind: type[T]) -> T:
        """The body of the request.

        Raises:
            ApiError: 413 and 415, as ``read_body``; 400 and 404, as ``parsed``.
            ClientDisconnect: the client went away while it was sending.
        """
        limit = self.service.settings.body_limit if kind.limit is None else kind.limit
        return await self.parsed(await read_body(self, limit), kind)

    async def parsed(self, body: bytes, kind: type[T]) -> T:
        """``body`` as ``kind``. Its fields without effect are noted, to be told with the answer.

        Raises:
            ApiError: 400, it is not of this kind, or a field is refused; 404, it names a model that
                is not served.
        """
        fields, raws = await decode(body, kind, self.service.large_bodies)
        self.visit.ignored += triage(raws, kind)
        check_model(getattr(fields, "model", None), self.service.frontend.card)
        return fields

    def notes(self) -> dict[str, str]:
        """The headers that tell what became of the request's fields, as far as that is known."""
        visit = self.visit
        told = ignored_header(visit.ignored) | canonical_header(visit.canonical)
        return told | keep_header(visit.tally.kept())

    def streamed(
        self, events: AsyncGenerator[bytes, None], framing: Framing | None = None
    ) -> EventStream:
        """``events`` as the answer."""
        return EventStream(events, self.service.settings, self.notes(), framing)


class Endpoint:
    """``function`` as an ASGI application, for tenants that have what they ``need``.

    Args:
        limited: Whether a request costs something, and counts against the tenant's limits.
        first: What is to hold whatever the body says; it raises if it does not.
    """

    def __init__(
        self,
        function: Callable[..., Awaitable[Any]],
        need: Need,
        *,
        limited: bool = False,
        first: Callable[[Call], object] | None = None,
    ):
        hints = get_type_hints(function)
        self.function, self._need, self.limited, self._first = function, need, limited, first
        self.takes: type[Body] | None = hints.get("fields")
        self.gives: object = hints["return"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive, send)
        call.visit.enter(self._need, limited=self.limited)
        if self._first is not None:
            self._first(call)
        given = dict(call.path_params)
        if self.takes is not None:
            given["fields"] = await call.read(self.takes)
        answer = await self.function(call, **given)
        if not isinstance(answer, Response):
            answer = Json(answer, headers=call.notes())
        await answer(scope, receive, send)
