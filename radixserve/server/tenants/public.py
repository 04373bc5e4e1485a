"""``/v1/cache/public``: prefixes of chats that all tenants share, for those who may declare them.

Nobody is told how much a prefix is reused: each tenant sees that in its own usage alone.
"""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.server.errors import ApiError
from radixserve.server.fields import canonical_header, ignored_header
from radixserve.server.limits import read_json
from radixserve.server.parameters import check_model
from radixserve.server.prefixes import check_name
from radixserve.server.prewarm import Beginning, in_common
from radixserve.server.service import Service
from radixserve.server.tenants.declared import PublicPrefix
from radixserve.server.tenants.visit import Visit
from radixserve.server.wire import Json, absent, invalid
from radixserve.tokens import count

LARGEST_BODY = 2**20


class PublicPrefixRequest(Beginning, kw_only=True):
    """What the chats that share begin with, as in a request for one."""


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
    check_name(name)
    fields, raws = await read_json(request, PublicPrefixRequest, LARGEST_BODY)
    card = service.frontend.card
    check_model(fields.model, card)
    if not card.prefix_cache:
        raise ApiError(
            status=400,
            message="Nothing can be shared: this server was started with --no-prefix-cache.",
            code="unsupported_feature",
        )
    chat = fields.chat()
    tokens, ignored, canonical = await in_common(service, chat, None, page_size=card.page_size)
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
    return Json(_shown(prefix), headers=headers)


async def list_prefixes(request: Request) -> Response:
    """Those that the tenant has declared; an administrator sees everybody's."""
    service: Service = request.app.state.service
    visit: Visit = request.state.visit
    owner = None if visit.tenant.admin else visit.tenant.name
    found = service.tenants.declarations.of(owner)
    return Json(PublicPrefixList(data=[_shown(each) for each in found]))


async def withdraw_prefix(request: Request) -> Response:
    """Nobody finds it any more, nor what followed it; running requests keep what they hold."""
    service: Service = request.app.state.service
    visit: Visit = request.state.visit
    name = request.path_params["prefix"]
    if not service.tenants.withdraw(visit.tenant.name, name):
        raise absent("prefix", f"You have declared no public prefix {name[:64]!r}", "not_found")
    return Json({"name": name, "object": "public_prefix", "deleted": True})


def _shown(prefix: PublicPrefix) -> PublicPrefixObject:
    return PublicPrefixObject(
        name=prefix.name,
        tenant=prefix.tenant,
        tokens=count(prefix.tokens),
        created_at=prefix.created_at,
    )
