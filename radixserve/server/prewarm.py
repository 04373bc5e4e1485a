"""``POST /v1/cache/prewarm``: compute what chats begin with before anybody waits for them."""

from __future__ import annotations

import uuid
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from starlette.datastructures import Headers

from radixserve.cache.terms import Keeping, Mark
from radixserve.engine.frontend import TextRequest
from radixserve.scheduling.sampling import SamplingParams
from radixserve.server.conversation import check_messages
from radixserve.server.endpoint import Call
from radixserve.server.errors import invalid
from radixserve.server.fields import Body
from radixserve.server.keeping import check_leaves, seconds_of, taken_out
from radixserve.server.parameters import text_request
from radixserve.server.recall import own_calls, owner_of
from radixserve.server.rendering import chat_encoder
from radixserve.server.service import Service, until_gone
from radixserve.server.tenants.visit import Visit
from radixserve.server.text_memory import Owner
from radixserve.server.wire import CacheFields, ChatRequest, Priority, Reuse, Timeout
from radixserve.text.public_prefix import public_prefix


class Beginning(Body, kw_only=True):
    """What chats begin with, as in a request for one."""

    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None

    def chat(self, **more: Any) -> tuple[ChatRequest, list[str]]:
        """The same as a chat, with ``more`` of its fields, and the names of marks without effect.

        Raises:
            ApiError: 400, there is nothing in it.
        """
        chat = ChatRequest(
            messages=self.messages or [],
            tools=self.tools or None,
            chat_template_kwargs=self.chat_template_kwargs,
            reasoning_effort=self.reasoning_effort,
            **more,
        )
        if not (chat.messages or chat.tools):
            raise invalid("messages", "Send messages, tools or both: what chats begin with")
        if chat.messages:
            check_messages(chat.messages)
        _, foreign = taken_out(chat.messages, chat.tools)
        return chat, foreign


class PrewarmRequest(Beginning, kw_only=True):
    """What the chats to come begin with, as in a request for one."""

    ttl: str | float | None = None
    """How long it is to be kept; None is as long as there is room for it."""
    session_id: str | None = None
    priority: Priority | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    cache: CacheFields | None = None
    timeout: Timeout | None = None
    explain: bool | None = None


OF_CHATS = ("session_id", "priority", "cache_salt", "extra_key", "cache", "timeout")
"""Fields that chats have too."""


class Prewarmed(msgspec.Struct, kw_only=True):
    """In tokens. What is shared are ``tokens``, of which so many were cached before."""

    id: str
    """By which ``GET /v1/cache/requests/{id}`` explains it."""
    object: str = "cache.prewarm"
    tokens: int
    cached_tokens: int
    computed_tokens: int
    kept_tokens: int | None = None
    """None where nothing was to be kept."""
    keep: str | None = None
    radixserve: Reuse | UnsetType = UNSET
    """Where ``explain`` asks for it."""


async def prewarm(call: Call, fields: PrewarmRequest) -> Prewarmed:
    """Computes what all chats have in common that begin with these messages and tools: no prompt to
    generate, and nothing that what follows might change."""
    return await until_gone(call.receive, warmed(call.service, call.visit, fields, call.headers))


async def warmed(
    service: Service,
    visit: Visit,
    fields: PrewarmRequest,
    headers: Headers,
    *,
    name: str | None = None,
) -> Prewarmed:
    """What it came to, once it is computed.

    Args:
        headers: Of the request.
        name: Of a session that owns all of it, in place of the one that is sent.

    Raises:
        ApiError, RadixServeError: as ``conversation.tokenized`` and ``Service.answers``.
        AnswerError: it could not be computed.
    """
    asked = await _asked(service, visit, fields, headers)
    if name is not None:
        keeping = replace(asked.keeping or Keeping(), session=name, owned=True)
        asked = replace(asked, keeping=keeping)
    visit.tally.explain = bool(fields.explain)
    async with aclosing(service.answers([asked], visit)) as deltas:
        async for _ in deltas:
            pass
    usage, kept = visit.tally.usage(), visit.tally.kept()
    cached = usage.prompt_tokens_details.cached_tokens
    return Prewarmed(
        id=asked.id,
        tokens=usage.prompt_tokens,
        cached_tokens=cached,
        computed_tokens=usage.prompt_tokens - cached,
        kept_tokens=None if kept is None else kept.tokens,
        keep=None if kept is None else kept.status,
        radixserve=usage.radixserve,
    )


def drafted(
    fields: PrewarmRequest, headers: Headers, *, prefix_cache: bool = True
) -> tuple[ChatRequest, TextRequest, list[str]]:
    """``fields`` as a chat, and what the engine is asked, still without its prompt: as far as both
    can be checked without the model. Also the names of marks without effect, which are gone then.

    Args:
        prefix_cache: Whether the server has one.

    Raises:
        ApiError: 400, a field cannot be.
    """
    chat, foreign = fields.chat(**{name: getattr(fields, name) for name in OF_CHATS})
    draft = text_request(
        chat,
        headers,
        f"warm-{uuid.uuid4().hex}",
        sampling=SamplingParams(max_tokens=0, temperature=0.0),
        continuation=False,
        most=1,
    )
    check_leaves(draft.cache, prefix_cache=prefix_cache)
    if fields.ttl is None:
        return chat, draft, foreign
    marks = (Mark(None, seconds_of(fields.ttl, "ttl")),)
    draft = replace(draft, keeping=replace(draft.keeping or Keeping(), marks=marks))
    return chat, draft, foreign


async def _asked(
    service: Service, visit: Visit, fields: PrewarmRequest, headers: Headers
) -> TextRequest:
    """What the engine is asked, which generates nothing."""
    prefix_cache = service.frontend.card.prefix_cache
    chat, draft, foreign = drafted(fields, headers, prefix_cache=prefix_cache)
    visit.ignored += foreign
    service.check_load()
    tokens = await in_common(service, visit, chat, owner_of(visit.tenant.name, draft))
    if not tokens:
        param = "messages" if chat.messages else "tools"
        message = f"{param}: chats that begin so have no token in common with this template"
        raise invalid(param, message)
    return replace(draft, prompt=tokens)


async def in_common(
    service: Service, visit: Visit, chat: ChatRequest, owner: Owner | None, *, page_size: int = 1
) -> bytes:
    """The tokens (int32 big-endian, whole pages) that all chats have in common which begin as
    ``chat``. What has no effect, and the canonical forms that changed it, are noted.

    Raises:
        ApiError: 400, a field cannot be.
        InvalidRequestError: what the template refuses.
        ContextLengthError: it is too long.
    """
    reading = service.dialect.reading(chat)
    template_kwargs, ignored = service.dialect.template_kwargs(chat)
    visit.ignored += ignored
    service.check_length(len(chat.messages), "messages", at_least=True)
    own = own_calls(service.memory, owner)

    def encoded() -> tuple[bytes, list[str]]:
        messages, tools, canonical = service.canonical.applied(chat.messages, reading.tools, own)
        tokens = public_prefix(
            chat_encoder(service, chat, owner),
            messages,
            tools=tools,
            template_kwargs=template_kwargs,
            page_size=page_size,
            limit=service.frontend.card.longest,
        )
        return tokens, canonical

    tokens, visit.canonical = await service.text_work(encoded)
    return tokens
