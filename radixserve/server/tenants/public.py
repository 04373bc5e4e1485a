"""``/v1/cache/public``: prefixes of chats that all tenants share, for those who may declare them.

Nobody is told how much a prefix is reused: each tenant sees that in its own usage alone.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.server.conversation import check_messages
from radixserve.server.errors import ApiError
from radixserve.server.fields import canonical_header, ignored_header
from radixserve.server.limits import decode, read_body
from radixserve.server.parameters import check_model
from radixserve.server.rendering import chat_encoder
from radixserve.server.service import Service
from radixserve.server.tenants.declared import PublicPrefix
from radixserve.server.tenants.visit import Visit
from radixserve.server.wire import ChatRequest, invalid
from radixserve.tenants.file import NAME
from radixserve.text.public_prefix import public_prefix
from radixserve.tokens import count

LARGEST_BODY = 2**20


class PublicPrefixRequest(msgspec.Struct, kw_only=True):
    """What the chats that share begin with, as in a request for one."""

    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class PublicPrefixObject(msgspec.Struct, kw_only=True):
    name: str
    object: str = "public_prefix"
    tenant: str
    """Whose declaration it is."""
    tokens: int
    """That are shared: whole blocks."""
    created_at: int


class PublicPrefixList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[PublicPrefixObject]


async def declare_prefix(request: Request) -> Response:
    """Make what all chats have in common that begin with these messages and tools public, in place
    of what had the name before. It stays so until it is withdrawn, its tenant loses the right, or
    the server ends."""
    service: Service = request.app.state.service
    visit: Visit = request.state.visit
    name = request.path_params["prefix"]
    if not NAME.fullmatch(name):
        message = "The name must have 1 to 64 letters, digits, or any of _ . - and begin with one "
        raise invalid("prefix", message + "of the first two")
    body = await read_body(request, LARGEST_BODY)
    fields, raws = await decode(body, PublicPrefixRequest, service.large_bodies)
    card = service.frontend.card
    check_model(fields.model, card)
    if not card.prefix_cache:
        raise ApiError(
            status=400,
            message="Nothing can be shared: this server was started with --no-prefix-cache.",
            code="unsupported_feature",
        )
    chat = ChatRequest(
        messages=fields.messages or [],
        tools=fields.tools or None,
        chat_template_kwargs=fields.chat_template_kwargs,
        reasoning_effort=fields.reasoning_effort,
    )
    if not (chat.messages or chat.tools):
        raise invalid("messages", "Send messages, tools or both: what is to be shared")
    service.check_length(len(chat.messages), "messages", at_least=True)
    if chat.messages:
        check_messages(chat.messages)
    reading = service.dialect.reading(chat)
    messages, tools, canonical = service.canonical.applied(chat.messages, reading.tools)
    template_kwargs, ignored = service.dialect.template_kwargs(chat)
    work = partial(
        public_prefix,
        chat_encoder(service, chat, None),
        messages,
        tools=tools,
        template_kwargs=template_kwargs,
        page_size=card.page_size,
        limit=card.longest,
    )
    tokens = await service.text_work(work)
    if not tokens:
        message = (
            "What all chats with this beginning have in common is less than a block of "
            f"{card.page_size} tokens, and only whole blocks are shared: declare more"
        )
        raise invalid("messages" if chat.messages else "tools", message)
    prefix = PublicPrefix(visit.tenant.name, name, tokens, int(time.time()))
    service.tenants.declare(prefix)
    unknown = [each for each in raws if each not in PublicPrefixRequest.__struct_fields__]
    headers = ignored_header([*ignored, *unknown]) | canonical_header(canonical)
    return _json(_shown(prefix), headers)


async def list_prefixes(request: Request) -> Response:
    """Those that the tenant has declared; an administrator sees everybody's."""
    service: Service = request.app.state.service
    visit: Visit = request.state.visit
    owner = None if visit.tenant.admin else visit.tenant.name
    found = service.tenants.declarations.of(owner)
    return _json(PublicPrefixList(data=[_shown(each) for each in found]))


async def withdraw_prefix(request: Request) -> Response:
    """Nobody finds it any more, nor what followed it; running requests keep what they hold."""
    service: Service = request.app.state.service
    visit: Visit = request.state.visit
    name = request.path_params["prefix"]
    if not service.tenants.withdraw(visit.tenant.name, name):
        raise ApiError(
            status=404,
            message=f"You have declared no public prefix {name[:64]!r}.",
            param="prefix",
            code="not_found",
        )
    return _json({"name": name, "object": "public_prefix", "deleted": True})


def _shown(prefix: PublicPrefix) -> PublicPrefixObject:
    return PublicPrefixObject(
        name=prefix.name,
        tenant=prefix.tenant,
        tokens=count(prefix.tokens),
        created_at=prefix.created_at,
    )


def _json(body: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), headers=headers, media_type="application/json")
