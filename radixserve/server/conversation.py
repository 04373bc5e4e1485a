"""A conversation on its way to the engine: what all routes that chat have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace
from starlette.datastructures import Headers

from radixserve.cache.terms import Keeping
from radixserve.engine.frontend import TextRequest
from radixserve.errors import ContextLengthError
from radixserve.explain.walk import text_of
from radixserve.server.beams import beams_of, check_free
from radixserve.server.dialect import Reading
from radixserve.server.endpoint import Call
from radixserve.server.errors import required, wrong
from radixserve.server.keeping import Marked, check_leaves, read_marks
from radixserve.server.kept import kept_to
from radixserve.server.limits import converted
from radixserve.server.parameters import bad_words, sampling_params, text_request
from radixserve.server.parsed import Heard, ParsedAnswer, call_id
from radixserve.server.recall import calls_of, owner_of, remembering
from radixserve.server.rendering import rendered
from radixserve.server.scored import prompt_logprobs
from radixserve.server.service import Service
from radixserve.server.structured import Form, check_form, form_of
from radixserve.server.tally import Tally
from radixserve.server.text_memory import Encoded, Owner
from radixserve.server.wire import ChatRequest
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import count

PART_FIELDS = frozenset({"type", "text"})
LONGEST = 3
"""Messages that are named where there is too much in them."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the engine is asked, and how its answers are read."""

    request: TextRequest
    reading: Reading
    id_length: int
    """Of the ids of calls; 0 if they may have any."""
    ignored: list[str]
    """Fields that have no effect."""
    heard: Heard | None = None
    """Remembers answers, so that they are found in the next prompt."""

    def answers(self, tally: Tally, prefix: str = "call_") -> list[ParsedAnswer]:
        """A reader for each of the answers, by its index; ids of calls begin with ``prefix``."""
        new_id = partial(call_id, self.id_length, prefix)
        return [
            ParsedAnswer(self.reading, tally, new_id, self.heard) for _ in range(self.request.n)
        ]


Called = Callable[[int], str]
"""What the client calls a message, by its place in a chat request."""


async def prepared(
    call: Call, fields: ChatRequest, id: str, called: Called = "messages.{}".format
) -> Conversation:
    """The conversation of ``fields``, rendered and tokenized, for the answer ``id``.

    Raises:
        ApiError, RadixServeError: as ``tokenized``; if the prompt is too long it is
            said which messages are the longest.
    """
    async with naming_longest(call.service, fields, called):
        return await tokenized(call, fields, id)


async def tokenized(call: Call, fields: ChatRequest, id: str) -> Conversation:
    """The conversation of ``fields``; it is checked before that costs much.

    Raises:
        ApiError: 400, a field cannot be.
        InvalidRequestError: what the template or the tokenizer refuses.
        ContextLengthError: the prompt is too long.
        OverloadedError: too many wait already.
    """
    service = call.service
    form = form_of(fields)
    draft = _draft(service, fields, call.headers, id)
    marked = read_marks(fields, call.headers)
    reading = service.dialect.reading(fields)
    template_kwargs, without_effect = service.dialect.template_kwargs(fields)
    service.check_length(len(fields.messages), "messages", at_least=True)
    check_messages(fields.messages)
    ignored = [*without_effect, *marked.ignored, *_ignored_in_messages(fields.messages)]
    service.check_load()
    owner = owner_of(call.tenant, draft)
    if fields.keep_reasoning and not (owner and service.memory.finds_answers):
        ignored.append("keep_reasoning")
    encoded, reading, (form, vain), keeping, canonical = await service.text_work(
        _encode, service, fields, reading, template_kwargs, form, owner, marked
    )
    call.visit.canonical = canonical
    if draft.beams is not None and form is not None:
        check_free(form.grammar)
    await check_form(service, form)
    request = replace(
        draft,
        prompt=encoded.tokens,
        sampling=replace(
            draft.sampling,
            grammar=None if form is None else form.grammar,
            bad_words=bad_words(fields, service.frontend.tokenizer),
        ),
        markers=reading.formats.markers,
        keeping=keeping,
    )
    ignored += vain
    place = encoded.place
    heard = None if place is None else remembering(service.memory, place, request)
    return Conversation(request, reading, service.dialect.id_length, ignored, heard)


def _draft(service: Service, fields: ChatRequest, headers: Headers, id: str) -> TextRequest:
    """What is asked, still without its prompt."""
    card = service.frontend.card
    length = ("max_tokens", fields.max_tokens)
    if fields.max_completion_tokens is not None:
        length = ("max_completion_tokens", fields.max_completion_tokens)
    if fields.prewarms:
        length = (length[0], 0)
    sampling = sampling_params(
        fields,
        card,
        max_tokens=length,
        logprobs=("top_logprobs", _top_logprobs(fields)),
        prompt_logprobs=prompt_logprobs(fields),
        least=1 if fields.prompt_logprobs is None and not fields.prewarms else 0,
    )
    draft = text_request(
        fields,
        headers,
        id,
        sampling=sampling,
        continuation=bool(fields.continue_final_message),
        most=service.frontend.most,
    )
    if fields.asks_to_prewarm:
        check_leaves(draft.cache, prefix_cache=card.prefix_cache)
    return replace(draft, beams=beams_of(fields, sampling, card, most=service.frontend.most))


@asynccontextmanager
async def naming_longest(
    service: Service, fields: ChatRequest, called: Called
) -> AsyncGenerator[None]:
    """Within, the error over a prompt that is too long says which messages are the longest."""
    try:
        yield
    except ContextLengthError as error:
        tokenizer = None if error.at_least else service.frontend.tokenizer
        error.message += await service.text_work(_longest, fields.messages, called, tokenizer)
        raise


def _longest(messages: list[dict[str, Any]], called: Called, tokenizer: Tokenizer | None) -> str:
    """The longest messages, each with its role and its tokens; in characters without ``tokenizer``,
    where even to count the tokens would take too long."""
    texts = [_text(message) for message in messages]
    longest = sorted(range(len(texts)), key=lambda place: -len(texts[place]))[:LONGEST]

    def size(text: str) -> str:
        if tokenizer is None:
            return f"{len(text)} characters"
        return f"{count(tokenizer.encode(text, add_special_tokens=False))} tokens"

    parts = (
        f"{called(place)} ({str(messages[place].get('role'))[:20]}, {size(texts[place])})"
        for place in longest
    )
    return f" The longest messages are {', '.join(parts)}."


def _text(message: dict[str, Any]) -> str:
    """What a message says, with the arguments of its calls."""
    said = [text_of(message.get("content"))]
    for _, given in calls_of(message) or []:
        said.append(given if isinstance(given, str) else msgspec.json.encode(given).decode())
    return "".join(said)


def _encode(
    service: Service,
    fields: ChatRequest,
    reading: Reading,
    template_kwargs: dict[str, Any],
    form: Form | None,
    owner: Owner | None,
    marked: Marked,
) -> tuple[Encoded, Reading, tuple[Form | None, list[str]], Keeping | None, list[str]]:
    """The prompt in tokens, how answers to it are read, what they are kept to, what is to be kept
    of it, and the canonical forms that changed it."""
    shown = rendered(service, fields, reading.tools, template_kwargs, owner)
    text, special = shown.text, bool(fields.add_special_tokens)
    encoded = service.encoded(text, owner, param="messages", add_special_tokens=special)
    ends = shown.ends([spot for spot, _ in marked.spots])
    places = encoded.places(ends, service.frontend.tokenizer)
    reading = reading.after(text, fields.messages, continued=bool(fields.continue_final_message))
    kept = kept_to(reading, form, service.frontend.tokenizer.special_tokens)
    return encoded, reading, kept, marked.at(places), shown.canonical


def _top_logprobs(fields: ChatRequest) -> int | None:
    top = fields.top_logprobs or 0
    if top and not fields.logprobs:
        raise wrong("top_logprobs", "needs logprobs to be true")
    return top if fields.logprobs else None


class ChatMessage(msgspec.Struct):
    """The shape of a message; what it says is the template's to judge."""

    role: Annotated[str, msgspec.Meta(min_length=1)]
    content: Any = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


def check_messages(messages: list[dict[str, Any]]) -> None:
    """Raises ApiError: 400, there are none, or one of them cannot be."""
    if not messages:
        raise wrong("messages", "must not be empty")
    for index, sent in enumerate(messages):
        path = f"messages.{index}"
        message = converted(sent, ChatMessage, path)
        if message.content is None and message.role != "assistant":
            raise required(f"{path}.content")


def _ignored_in_messages(messages: list[dict[str, Any]]) -> list[str]:
    """Content parts are reduced to their text; the messages' own fields reach the template."""
    names = set()
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                if isinstance(part, dict):
                    names.update(part.keys() - PART_FIELDS)
    return [f"messages.content.{name}" for name in names]
