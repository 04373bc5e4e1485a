"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's API."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from radixserve.server.conversation import check_messages
from radixserve.server.endpoint import Call
from radixserve.server.errors import ApiError, wrong
from radixserve.server.keeping import taken_out
from radixserve.server.messages.answer import MessageAnswer
from radixserve.server.messages.errors import error_body
from radixserve.server.messages.request import Asked, conversation_of, own_names, understood
from radixserve.server.messages.wire import (
    CountTokensRequest,
    CountTokensResponse,
    MessageObject,
    MessagesRequest,
    News,
    Ping,
)
from radixserve.server.rendering import rendered
from radixserve.server.service import Deltas, Service, until_gone
from radixserve.server.sse import EventStream, Framing, event
from radixserve.server.text_memory import Owner
from radixserve.server.tokenize import LONGEST_TEXT
from radixserve.tokens import count


async def create_message(call: Call, fields: MessagesRequest) -> MessageObject | EventStream:
    visit = call.visit
    identity = f"msg_{uuid.uuid4().hex}"
    conversation = await conversation_of(call, fields, identity)
    answer = MessageAnswer(
        identity,
        conversation,
        call.service.frontend.card,
        visit.tally,
        max_tokens=fields.max_tokens,
        diagnostics=fields.diagnostics,
    )
    visit.tally.explain = visit.tally.explain or bool(fields.explain)
    if fields.diagnostics is not None:
        visit.compare = fields.diagnostics.previous_message_id or None
    deltas = _own(call.service.answers([conversation.request], visit))
    if fields.stream:
        return call.streamed(_events(answer.news(deltas)), _framing(call))
    return await until_gone(call.receive, answer.whole(deltas))


async def count_tokens(call: Call, fields: CountTokensRequest) -> CountTokensResponse:
    """How many tokens the prompt of such a message has, also where they are too many."""
    wanted = await understood(call, fields)
    owner = Owner(call.tenant, b"", leaves=False)
    service = call.service
    counted = await service.text_work(_counted, service, wanted, owner)
    found, ignored, call.visit.canonical = counted
    call.visit.ignored += wanted.renamed(ignored)
    return CountTokensResponse(found)


def _counted(service: Service, wanted: Asked, owner: Owner) -> tuple[int, list[str], list[str]]:
    """The tokens of the prompt, the fields that have no effect on it, and the canonical forms that
    changed it."""
    fields = wanted.chat
    with own_names():
        check_messages(fields.messages)
        taken_out(fields.messages, fields.tools)
        reading = service.dialect.reading(fields)
        template_kwargs, ignored = service.dialect.template_kwargs(fields)
        shown = rendered(service, fields, reading.tools, template_kwargs, owner)
    if len(shown.text) > LONGEST_TEXT:
        raise wrong("messages", f"must have at most {LONGEST_TEXT} characters")
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


def _framing(call: Call) -> Framing:
    def failure(error: ApiError) -> bytes:
        return b"event: error\ndata: " + error_body(error, call.scope) + b"\n\n"

    return Framing(keep_alive=_event(Ping()), failure=failure, end=b"")
