"""Why a prompt was computed, and what would be reused of one: ``GET /v1/cache/requests/{id}`` and
``POST /v1/cache/lookup``."""

from __future__ import annotations

import uuid

from msgspec.structs import replace

from radixserve.engine.frontend import TextRequest
from radixserve.engine.messages import Look
from radixserve.server import completions, conversation
from radixserve.server.endpoint import Call
from radixserve.server.errors import absent, invalid
from radixserve.server.explained import Told
from radixserve.server.limits import Raws, decode, is_null, read_body
from radixserve.server.messages.request import conversation_of
from radixserve.server.messages.wire import MessagesRequest
from radixserve.server.responses.reading import read as read_response
from radixserve.server.responses.wire import ResponsesRequest
from radixserve.server.wire import ChatRequest, CompletionRequest


async def cache_request(call: Call, id: str) -> Told:
    """Where the tokens of a request's prompt came from, and why not all were in the cache.

    Requests of one's own are known for as long as there is room: by the id of their answer, or by
    that which ``x-request-id`` and the access log have, unless the client chose it. With several
    prompts each has its number behind it, as in ``cmpl-...-1``.
    """
    trail = call.service.explainer.trail
    record = trail.find(call.tenant, id) or trail.find(call.tenant, f"{id}-0")
    if record is None:
        raise absent(
            "id",
            f"Nothing is known of a request {id[:64]!r}: not yours, or too long ago",
            "request_not_found",
        )
    told = await call.service.text_work(call.service.explainer.told, record)
    if told is None and record.unexplained:
        raise absent(
            "id",
            f"The request {id[:64]!r} could not be explained: the server's log says why",
            "request_not_explained",
        )
    if told is None:
        raise absent(
            "id", f"The request {id[:64]!r} has not begun, or never did", "request_not_begun"
        )
    return told


async def lookup(call: Call) -> Told:
    """What would be reused of a prompt, where it parts from those before it, and how long its first
    token would take. The body is that of a chat, of completions with one prompt, of a response, or
    of Anthropic's messages; nothing is generated, computed, or touched in the cache.
    """
    service = call.service
    body = await read_body(call, service.settings.body_limit)
    prompt = call.visit.own(await _read(call, body), service.frontend.card)
    off = prompt.cache == "off" or not service.frontend.card.prefix_cache
    limit = 0 if off else None
    if limit is None and prompt.sampling.prompt_logprobs is not None:
        limit = max(0, prompt.sampling.prompt_logprobs_start - 1)
    look = Look(prompt.prompt, prompt.namespace, prompt.tenant, limit)
    read = service.explainer.lookup(prompt, await service.frontend.look(look))
    return await service.text_work(read, call.visit.body)


async def _read(call: Call, body: bytes) -> TextRequest:
    """The prompt.

    Raises:
        ApiError, RadixServeError: what the route whose body it is would refuse.
    """
    raws, _ = await decode(body, Raws, call.service.large_bodies)
    sent = {name for name, raw in raws.items() if not is_null(raw)}
    id = f"lookup-{uuid.uuid4().hex}"
    if "prompt" in sent:
        fields = await call.parsed(body, CompletionRequest)
        prompted = await completions.prepared(call, fields, id)
        if len(prompted.requests) > 1:
            raise invalid("prompt", "Look up one prompt at a time")
        return prompted.requests[0]
    if "input" in sent or "previous_response_id" in sent:
        _, response = await read_response(call, await call.parsed(body, ResponsesRequest))
        return replace(response.request, id=id)
    if "system" in sent or "anthropic-version" in call.headers:
        message = await call.parsed(body, MessagesRequest)
        return (await conversation_of(call, message, id)).request
    chat = await call.parsed(body, ChatRequest)
    ready = await conversation.prepared(call, chat, id)
    call.visit.ignored += ready.ignored
    return ready.request
