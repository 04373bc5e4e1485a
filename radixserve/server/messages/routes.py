"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's API."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.server.answer import headers_of
from radixserve.server.conversation import check_messages, naming_longest, prepared
from radixserve.server.errors import ApiError
from radixserve.server.fields import canonical_header, ignored_header, triage
from radixserve.server.keeping import keep_header, taken_out
from radixserve.server.limits import read_json
from radixserve.server.messages.answer import MessageAnswer
from radixserve.server.messages.errors import error_body
from radixserve.server.messages.request import REFUSED, Asked, asked, own_names
from radixserve.server.messages.wire import (
    CountTokensRequest,
    CountTokensResponse,
    MessagesRequest,
    News,
    Ping,
)
from radixserve.server.parameters import check_model
from radixserve.server.rendering import rendered
from radixserve.server.service import Deltas, Service, until_gone
from radixserve.server.sse import EventStream, Framing, event
from radixserve.server.tenants.visit import Visit
from radixserve.server.text_memory import Owner
from radixserve.server.tokenize import LONGEST_TEXT
from radixserve.server.wire import Json, invalid
from radixserve.tokens import count

T = TypeVar("T", bound=CountTokensRequest)


async def create_message(request: Request) -> Response:
    service: Service = request.app.state.service
    fields, wanted = await _read(request, MessagesRequest)
    identity = f"msg_{uuid.uuid4().hex}"
    tenant = request.state.visit.tenant.name
    with own_names():
        async with naming_longest(service, wanted.chat, wanted.paths.__getitem__):
            conversation = await prepared(service, wanted.chat, request.headers, identity, tenant)
    ignored = [*wanted.ignored, *wanted.renamed(conversation.ignored)]
    headers = headers_of(service, conversation.request, ignored, conversation.canonical)
    answer = MessageAnswer(
        identity,
        conversation,
        service.frontend.card,
        request.state.tally,
        max_tokens=fields.max_tokens,
        diagnostics=fields.diagnostics,
    )
    visit: Visit = request.state.visit
    visit.tally.explain = visit.tally.explain or bool(fields.explain)
    if fields.diagnostics is not None:
        visit.compare = fields.diagnostics.previous_message_id or None
    deltas = _own(service.answers([conversation.request], visit))
    if fields.stream:
        events = _events(answer.news(deltas))
        return EventStream(events, service.settings, headers, _framing(request))
    whole = await until_gone(request.receive, answer.whole(deltas))
    headers |= keep_header(request.state.tally.kept())
    return Json(whole, headers=headers)


async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a message has, also where they are too many."""
    service: Service = request.app.state.service
    _, wanted = await _read(request, CountTokensRequest)
    owner = Owner(request.state.visit.tenant.name, b"", leaves=False)
    found, ignored, canonical = await service.text_work(partial(_counted, service, wanted, owner))
    headers = ignored_header([*wanted.ignored, *wanted.renamed(ignored)])
    headers |= canonical_header(canonical)
    return Json(CountTokensResponse(found), headers=headers)


async def _read(request: Request, type_: type[T]) -> tuple[T, Asked]:
    """The body, and what it comes to.

    Raises:
        ApiError: 400, a field cannot be; 404, the model is another; 413 and 415, the body.
    """
    service: Service = request.app.state.service
    fields, raws = await read_json(request, type_)
    ignored = triage(raws, type_, REFUSED)
    check_model(fields.model, service.frontend.card)
    wanted = await service.text_work(partial(asked, fields, raws, service.dialect))
    return fields, msgspec.structs.replace(wanted, ignored=[*ignored, *wanted.ignored])


def _counted(service: Service, wanted: Asked, owner: Owner) -> tuple[int, list[str], list[str]]:
    """The tokens of the prompt, the fields that have no effect on it, and the canonical forms that
    changed it."""
    fields = wanted.chat
    with own_names():
        check_messages(fields.messages)
        taken_out(fields.messages, fields.tools)
        reading = service.dialect.reading(fields)
        template_kwargs, ignored = service.dialect.template_kwargs(fields)
        shown = rendered(service, fields, reading, template_kwargs, owner)
    if len(shown.text) > LONGEST_TEXT:
        raise invalid("messages", f"messages must have at most {LONGEST_TEXT} characters")
    encoded = service.memory.encode(shown.text, owner, param="messages")
    return count(encoded.tokens), ignored, shown.canonical


async def _own(deltas: Deltas) -> Deltas:
    with own_names():
        async with aclosing(deltas):
            async for each in deltas:
                yield each


async def _events(news: AsyncGenerator[News, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(news):
        async for each in news:
            yield _event(each)


def _event(news: News) -> bytes:
    return event(news, str(news.__struct_config__.tag))


def _framing(request: Request) -> Framing:
    def failure(error: ApiError) -> bytes:
        return b"event: error\ndata: " + error_body(error, request.scope) + b"\n\n"

    return Framing(keep_alive=_event(Ping()), failure=failure, end=b"")
