"""A conversation on its way to the engine: what all routes that chat have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.datastructures import Headers

from radixserve.cache.terms import Keeping
from radixserve.engine.frontend import TextRequest
from radixserve.errors import ContextLengthError
from radixserve.explain.walk import text_of
from radixserve.scheduling.sampling import MAX_LOGPROBS
from radixserve.server.beams import beams_of, check_free
from radixserve.server.dialect import Reading
from radixserve.server.keeping import Marked, check_leaves, read_marks
from radixserve.server.kept import kept_to
from radixserve.server.parameters import bad_words, check_model, sampling_params, text_request
from radixserve.server.parsed import Heard, ParsedAnswer, call_id
from radixserve.server.recall import calls_of, owner_of, remembering
from radixserve.server.rendering import rendered
from radixserve.server.scored import prompt_logprobs
from radixserve.server.service import Service
from radixserve.server.structured import Form, check_form, form_of
from radixserve.server.text_memory import Encoded, Owner
from radixserve.server.wire import ChatRequest, invalid
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
    canonical: list[str]
    """Canonical forms that changed the prompt."""
    heard: Heard | None = None
    """Remembers answers, so that they are found in the next prompt."""

    def answers(self, prefix: str = "call_") -> list[ParsedAnswer]:
        """A reader for each of the answers, by its index; ids of calls begin with ``prefix``."""
        new_id = partial(call_id, self.id_length, prefix)
        return [ParsedAnswer(self.reading, new_id, self.heard) for _ in range(self.request.n)]


async def prepared(
    service: Service, fields: ChatRequest, headers: Headers, id: str, tenant: str
) -> Conversation:
    """The conversation of ``fields``, rendered and tokenized; it is checked before that costs much.

    Args:
        id: of the answer.
        tenant: who asks.

    Raises:
        ApiError: 400, a field cannot be.
        InvalidRequestError: what the template or the tokenizer refuses.
        ContextLengthError: the prompt is too long.
        OverloadedError: too many wait already.
    """
    check_model(fields.model, service.frontend.card)
    form = form_of(fields)
    draft = _draft(service, fields, headers, id)
    marked = read_marks(fields, headers)
    reading = service.dialect.reading(fields)
    template_kwargs, without_effect = service.dialect.template_kwargs(fields)
    service.check_length(len(fields.messages), "messages", at_least=True)
    check_messages(fields.messages)
    ignored = [*without_effect, *marked.ignored, *_ignored_in_messages(fields.messages)]
    service.check_load()
    owner = owner_of(tenant, draft)
    if fields.keep_reasoning and not (owner and service.memory.finds_answers):
        ignored.append("keep_reasoning")
    encode = partial(_encode, service, fields, reading, template_kwargs, form, owner, marked)
    encoded, reading, (form, vain), keeping, canonical = await service.text_work(encode)
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
    return Conversation(request, reading, service.dialect.id_length, ignored, canonical, heard)


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
    service: Service, fields: ChatRequest, called: Callable[[int], str] = "messages.{}".format
) -> AsyncGenerator[None]:
    """Within, the error over a prompt that is too long says which messages of ``fields`` are the
    longest.

    Args:
        called: What the client calls a message, by its place in ``fields``.
    """
    try:
        yield
    except ContextLengthError as error:
        tokenizer = None if error.at_least else service.frontend.tokenizer
        named = partial(_longest, fields.messages, called, tokenizer)
        error.message += await service.text_work(named)
        raise


def _longest(
    messages: list[dict[str, Any]], called: Callable[[int], str], tokenizer: Tokenizer | None
) -> str:
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
    shown = rendered(service, fields, reading, template_kwargs, owner)
    text, special = shown.text, bool(fields.add_special_tokens)
    encoded = service.encoded(text, owner, param="messages", add_special_tokens=special)
    ends = shown.ends([spot for spot, _ in marked.spots])
    places = encoded.places(ends, service.frontend.tokenizer)
    reading = reading.after(text, fields.messages, continued=bool(fields.continue_final_message))
    kept = kept_to(reading, form, service.frontend.tokenizer.special_tokens)
    return encoded, reading, kept, marked.at(places), shown.canonical


def _top_logprobs(fields: ChatRequest) -> int | None:
    top = fields.top_logprobs or 0
    if not 0 <= top <= MAX_LOGPROBS:
        raise invalid("top_logprobs", f"top_logprobs must be between 0 and {MAX_LOGPROBS}")
    if top and not fields.logprobs:
        raise invalid("top_logprobs", "top_logprobs needs logprobs to be true")
    return top if fields.logprobs else None


def check_messages(messages: list[dict[str, Any]]) -> None:
    """The shape of each message; what it says is the template's to judge."""
    if not messages:
        raise invalid("messages", "messages must not be empty")
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        role = message.get("role")
        if role is None:
            raise invalid(f"{path}.role", f"{path}.role is required", "missing_required_parameter")
        if not isinstance(role, str) or not role:
            raise invalid(f"{path}.role", f"{path}.role must be a string", "invalid_type")
        if message.get("content") is None and role != "assistant":
            raise invalid(
                f"{path}.content", f"{path}.content is required", "missing_required_parameter"
            )
        for name in ("name", "tool_call_id", "reasoning", "reasoning_content"):
            if not isinstance(message.get(name), str | None):
                raise invalid(f"{path}.{name}", f"{path}.{name} must be a string", "invalid_type")
        if not isinstance(message.get("tool_calls"), list | None):
            raise invalid(f"{path}.tool_calls", f"{path}.tool_calls must be a list", "invalid_type")


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
