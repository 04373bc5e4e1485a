"""A request for a response, with what it goes on from, on its way to the engine."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from msgspec import structs
from starlette.datastructures import Headers
from starlette.requests import Request

from radixserve.cache.terms import Keeping
from radixserve.errors import ContextLengthError, InvalidRequestError
from radixserve.server.conversation import Conversation, naming_longest, prepared
from radixserve.server.errors import ApiError, to_api_error
from radixserve.server.fields import triage, unknown_options
from radixserve.server.limits import decode, read_body
from radixserve.server.responses.fields import RESPONSES_HINTS, RESPONSES_REFUSED, Asked
from radixserve.server.responses.items import (
    Script,
    client_path,
    item_id,
    read_items,
    resolved,
)
from radixserve.server.responses.store import Record, Responses, turn_of
from radixserve.server.responses.truncation import moved, shorter
from radixserve.server.responses.wire import ComparedCacheOptions, Item, ResponsesRequest
from radixserve.server.service import Service
from radixserve.server.wire import ChatRequest, invalid

SHOWN = ("messages", "tools", "tool_choice", "reasoning_effort", "chat_template_kwargs")
"""What a prompt is made of."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A request that the engine can be asked."""

    id: str
    """Of the response."""
    fields: ResponsesRequest
    asked: Asked
    items: list[Item]
    """Of its input, each with an id."""
    conversation: Conversation
    ignored: list[str]
    """Fields that have no effect."""
    reworded: Callable[[Exception], Exception]
    """An error as the client knows its own fields."""
    compare: str | None
    """Id of a response whose prompt this one's is compared with."""


@dataclass(frozen=True, slots=True)
class Text:
    """What can be known of a request without the model."""

    asked: Asked
    items: list[Item]
    ignored: list[str]
    paths: dict[str, str]
    """What the client calls the parts of the chat request."""

    def called(self, place: int) -> str:
        """What the client calls a message of the chat request."""
        return client_path(f"messages.{place}", self.paths)


async def read(request: Request) -> Ready:
    """The request, rendered and tokenized.

    Raises:
        ApiError, RadixServeError: as ``read_body`` and ``of_body``.
    """
    service: Service = request.app.state.service
    return await of_body(request, await read_body(request, service.settings.body_limit))


async def of_body(request: Request, body: bytes) -> Ready:
    """``request`` with this ``body``, rendered and tokenized.

    Raises:
        ApiError: 400, a field cannot be; 404, what it goes on from is not stored.
        RadixServeError: what ``prepared`` raises.
    """
    service: Service = request.app.state.service
    store: Responses = request.app.state.responses
    tenant = request.state.visit.tenant.name
    fields, raws = await decode(body, ResponsesRequest, service.large_bodies)
    ignored = triage(raws, ResponsesRequest, RESPONSES_REFUSED, RESPONSES_HINTS)
    ignored += unknown_options(raws, ComparedCacheOptions)
    sent = _sent(fields)
    if not isinstance(sent, str) and fields.truncation != "auto":
        service.check_length(len(sent), "input", at_least=True)
    options = fields.prompt_cache_options
    compare = None if options is None else options.comparison_response_id or None
    service.check_load()
    id = f"resp_{uuid.uuid4().hex}"
    past = store.chain(tenant, fields.previous_response_id)
    references = store.referred(tenant, _references(sent))
    text = await service.text_work(partial(_text, fields, id, past, references))
    reworded = partial(_reworded, text.paths)
    try:
        async with naming_longest(service, text.asked.chat, text.called):
            conversation = await _prepared(service, fields, text, request.headers, id, tenant)
    except (ApiError, InvalidRequestError) as error:
        raise reworded(error) from error
    if fields.store is not False:
        conversation = _named(conversation, turn_of(id))
    ignored += [*text.ignored, *(client_path(name, text.paths) for name in conversation.ignored)]
    # Not what was sent, which may go on from what is stored.
    request.state.visit.body = await service.text_work(partial(_shown, text.asked.chat))
    return Ready(id, fields, text.asked, text.items, conversation, ignored, reworded, compare)


def _shown(chat: ChatRequest) -> bytes:
    """The whole conversation as a body. O(its size)."""
    fields = {name: getattr(chat, name) for name in SHOWN}
    return msgspec.json.encode({name: each for name, each in fields.items() if each is not None})


async def _prepared(
    service: Service,
    fields: ResponsesRequest,
    text: Text,
    headers: Headers,
    id: str,
    tenant: str,
) -> Conversation:
    """The conversation, without its oldest turns if that is wanted and it is too long."""
    chat = text.asked.chat
    if fields.truncation != "auto":
        return await prepared(service, chat, headers, id, tenant)
    # Whoever reads them takes marks out.
    sent, tools = deepcopy((chat.messages, chat.tools))
    try:
        return await prepared(service, chat, headers, id, tenant)
    except ContextLengthError as error:
        paths = dict(text.paths)
        for gone, messages in shorter(sent, error):
            chat.messages, chat.tools = deepcopy((messages, tools))
            text.paths.clear()
            text.paths.update(moved(paths, gone))
            try:
                return await prepared(service, chat, headers, id, tenant)
            except ContextLengthError as again:
                error = again
        raise error


def _named(conversation: Conversation, turn: str) -> Conversation:
    """``conversation`` with a name for where it ends."""
    request = conversation.request
    keeping = structs.replace(request.keeping or Keeping(), turn=turn)
    return replace(conversation, request=structs.replace(request, keeping=keeping))


def _sent(fields: ResponsesRequest) -> str | list[dict[str, Any]]:
    """``input``, which may be left out where there is something to go on from."""
    if fields.input is not None:
        return fields.input
    if fields.previous_response_id is None:
        raise invalid("input", "input is required", "missing_required_parameter")
    return []


def _references(sent: str | list[dict[str, Any]]) -> list[str]:
    found = [] if isinstance(sent, str) else [each for each in sent if _refers(each)]
    return [each["id"] for each in found]


def _refers(item: dict[str, Any]) -> bool:
    return item.get("type") == "item_reference" and isinstance(item.get("id"), str)


def _text(fields: ResponsesRequest, id: str, past: list[Record], references: list[Record]) -> Text:
    """O(the conversation), so that it is for a thread.

    Raises:
        ApiError: 400, a field cannot be; 404, a reference leads nowhere.
    """
    sent = _sent(fields)
    given, ignored = read_items(sent)
    known = {item.id: item for record in references for item in record.items() if item.id}
    items = resolved(given, known)
    script = Script(fields.instructions)
    for record in past:
        script.extend(record.items(), lambda _: "previous_response_id")
    script.extend(items, lambda place: "input" if isinstance(sent, str) else f"input.{place}")
    for place, item in enumerate(items):
        item.id = item_id(type(item), id, place)
    asked = Asked(fields, script.messages)
    return Text(asked, items, [*ignored, *asked.ignored], {**asked.paths, **script.paths})


def _reworded(paths: dict[str, str], error: Exception) -> Exception:
    """``error`` with the fields as the client calls them."""
    if not isinstance(error, ApiError | InvalidRequestError) or error.param is None:
        return error
    param, message = client_path(error.param, paths), error.message
    if message.startswith(error.param):
        message = param + message.removeprefix(error.param)
    return replace(to_api_error(error), message=message, param=param)
