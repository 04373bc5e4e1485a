"""A request for a response, with what it goes on from, on its way to the engine."""

from __future__ import annotations

import uuid
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import structs

from radixserve.cache.terms import Keeping
from radixserve.errors import ContextLengthError, InvalidRequestError
from radixserve.server.conversation import Conversation, naming_longest, tokenized
from radixserve.server.endpoint import Call
from radixserve.server.errors import ApiError, required, to_api_error
from radixserve.server.responses.fields import Asked
from radixserve.server.responses.items import (
    Script,
    client_path,
    item_id,
    read_items,
    resolved,
)
from radixserve.server.responses.store import Record, Responses, turn_of
from radixserve.server.responses.truncation import moved, shorter
from radixserve.server.responses.wire import Item, ResponsesRequest
from radixserve.server.wire import ChatRequest

SHOWN = ("messages", "tools", "tool_choice", "reasoning_effort", "chat_template_kwargs")
"""What a prompt is made of."""


@dataclass(frozen=True, slots=True)
class Question:
    """What can be known of a request without the model."""

    id: str
    """Of the response."""
    asked: Asked
    items: list[Item]
    """Of its input, each with an id."""
    paths: dict[str, str]
    """What the client calls the parts of the chat request."""

    def called(self, place: int) -> str:
        """What the client calls a message of the chat request."""
        return client_path(f"messages.{place}", self.paths)

    def reworded(self, error: Exception) -> Exception:
        """``error`` with the fields as the client calls them."""
        if not isinstance(error, ApiError | InvalidRequestError) or error.param is None:
            return error
        param, message = client_path(error.param, self.paths), error.message
        if message.startswith(error.param):
            message = param + message.removeprefix(error.param)
        return replace(to_api_error(error), message=message, param=param)


async def read(call: Call, fields: ResponsesRequest) -> tuple[Question, Conversation]:
    """The request, rendered and tokenized.

    Raises:
        ApiError: 400, a field cannot be; 404, what it goes on from is not stored.
        RadixServeError: what ``tokenized`` raises.
    """
    service, visit = call.service, call.visit
    store: Responses = call.app.state.responses
    sent = _sent(fields)
    if not isinstance(sent, str) and fields.truncation != "auto":
        service.check_length(len(sent), "input", at_least=True)
    service.check_load()
    past = store.chain(call.tenant, fields.previous_response_id)
    references = store.referred(call.tenant, _references(sent))
    question, ignored = await service.text_work(_question, fields, past, references)
    visit.ignored += ignored
    try:
        async with naming_longest(service, question.asked.chat, question.called):
            conversation = await _conversation(call, fields, question)
    except (ApiError, InvalidRequestError) as error:
        raise question.reworded(error) from error
    if fields.store is not False:
        conversation = _named(conversation, turn_of(question.id))
    visit.ignored += (client_path(name, question.paths) for name in conversation.ignored)
    # Not what was sent, which may go on from what is stored.
    visit.body = await service.text_work(_shown, question.asked.chat)
    return question, conversation


def _shown(chat: ChatRequest) -> bytes:
    """The whole conversation as a body. O(its size)."""
    fields = {name: getattr(chat, name) for name in SHOWN}
    return msgspec.json.encode({name: each for name, each in fields.items() if each is not None})


async def _conversation(call: Call, fields: ResponsesRequest, question: Question) -> Conversation:
    """The conversation, without its oldest turns if that is wanted and it is too long."""
    chat, paths = question.asked.chat, dict(question.paths)
    if fields.truncation != "auto":
        return await tokenized(call, chat, question.id)
    # Whoever reads them takes marks out.
    sent, tools = await call.service.text_work(_copied, chat.messages, chat.tools)
    try:
        return await tokenized(call, chat, question.id)
    except ContextLengthError as error:
        for gone, messages in shorter(sent, error):
            copies = await call.service.text_work(_copied, messages, tools)
            chat.messages, chat.tools = copies
            question.paths.clear()
            question.paths.update(moved(paths, gone))
            try:
                return await tokenized(call, chat, question.id)
            except ContextLengthError as again:
                error = again
        raise error


def _copied(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """O(their size): it is for a thread."""
    return deepcopy((messages, tools))


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
        raise required("input")
    return []


def _references(sent: str | list[dict[str, Any]]) -> list[str]:
    found = [] if isinstance(sent, str) else [each for each in sent if _refers(each)]
    return [each["id"] for each in found]


def _refers(item: dict[str, Any]) -> bool:
    return item.get("type") == "item_reference" and isinstance(item.get("id"), str)


def _question(
    fields: ResponsesRequest, past: list[Record], references: list[Record]
) -> tuple[Question, list[str]]:
    """What is asked, and the fields without effect. O(the conversation): it is for a thread.

    Raises:
        ApiError: 400, a field cannot be; 404, a reference leads nowhere.
    """
    id, sent = f"resp_{uuid.uuid4().hex}", _sent(fields)
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
    question = Question(id, asked, items, {**asked.paths, **script.paths})
    return question, [*ignored, *asked.ignored]
