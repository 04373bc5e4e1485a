"""``/v1/cache/public``: prefixes of chats that all tenants share, for those who may declare them.

Nobody is told how much a prefix is reused: each tenant sees that in its own usage alone.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import msgspec

from radixserve.server.endpoint import Call
from radixserve.server.errors import absent, invalid
from radixserve.server.prefixes import check_name
from radixserve.server.prewarm import Beginning, in_common
from radixserve.server.tenants.declared import PublicPrefix
from radixserve.tokens import count


class PublicPrefixRequest(Beginning, kw_only=True):
    """What the chats that share begin with, as in a request for one."""

    limit: ClassVar[int | None] = 2**20


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


async def declare_prefix(
    call: Call, prefix: str, fields: PublicPrefixRequest
) -> PublicPrefixObject:
    """Make what all chats have in common that begin with these messages and tools public, in place
    of what had the name before. It stays so until it is withdrawn, its tenant loses the right, or
    the server ends."""
    check_name(prefix)
    card = call.service.frontend.card
    if not card.prefix_cache:
        message = "Nothing can be shared: this server was started with --no-prefix-cache"
        raise invalid(None, message, "unsupported_feature")
    chat, foreign = fields.chat()
    call.visit.ignored += foreign
    tokens = await in_common(call.service, call.visit, chat, None, page_size=card.page_size)
    if not tokens:
        message = (
            "What all chats with this beginning have in common is less than a block of "
            f"{card.page_size} tokens, and only whole blocks are shared: declare more"
        )
        raise invalid("messages" if chat.messages else "tools", message)
    declared = PublicPrefix(call.tenant, prefix, tokens, int(time.time()))
    call.service.tenants.declare(declared)
    return _shown(declared)


async def list_prefixes(call: Call) -> PublicPrefixList:
    """Those that the tenant has declared; an administrator sees everybody's."""
    owner = None if call.visit.tenant.admin else call.tenant
    found = call.service.tenants.declarations.of(owner)
    return PublicPrefixList(data=[_shown(each) for each in found])


async def withdraw_prefix(call: Call, prefix: str) -> dict[str, Any]:
    """Nobody finds it any more, nor what followed it; running requests keep what they hold."""
    if not call.service.tenants.withdraw(call.tenant, prefix):
        raise absent("prefix", f"You have declared no public prefix {prefix[:64]!r}", "not_found")
    return {"name": prefix, "object": "public_prefix", "deleted": True}


def _shown(prefix: PublicPrefix) -> PublicPrefixObject:
    return PublicPrefixObject(
        name=prefix.name,
        tenant=prefix.tenant,
        tokens=count(prefix.tokens),
        created_at=prefix.created_at,
    )
