"""Why a prompt was computed, and what would be reused of one: ``GET /v1/cache/requests/{id}`` and
``POST /v1/cache/lookup``."""

from __future__ import annotations

import uuid
from functools import partial

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from radixserve.engine.frontend import TextRequest
from radixserve.engine.messages import Look
from radixserve.server import completions, conversation
from radixserve.server.fields import CHAT_REFUSED, COMPLETION_REFUSED, ignored_header, triage
from radixserve.server.limits import Raws, decode, read_body
from radixserve.server.messages.request import REFUSED as MESSAGES_REFUSED
from radixserve.server.messages.request import asked, own_names
from radixserve.server.messages.wire import MessagesRequest
from radixserve.server.parameters import check_model
from radixserve.server.responses.reading import of_body
from radixserve.server.service import Service
from radixserve.server.tenants.visit import Visit
from radixserve.server.wire import ChatRequest, CompletionRequest, Json, absent, invalid


async def cache_request(request: Request) -> Response:
    """Where the tokens of a request's prompt came from, and why not all were in the cache.

    Requests of one's own are known by the id of their answer for as long as there is room; with
    several prompts each has its number behind it, as in ``cmpl-...-1``.
    """
    service: Service = request.app.state.service
    visit: Visit = request.state.visit
    id, trail = request.path_params["id"], service.explainer.trail
    name = visit.tenant.name
    record = trail.find(name, id) or trail.find(name, f"{id}-0")
    if record is None:
        raise absent(
            "id",
            f"Nothing is known of a request {id[:64]!r}: not yours, or too long ago",
            "request_not_found",
        )
    told = await service.text_work(partial(service.explainer.told, record))
    if told is None:
        raise absent(
            "id", f"The request {id[:64]!r} has not begun, or never did", "request_not_begun"
        )
    return Json(told)


async def lookup(request: Request) -> Response:
    """What would be reused of a prompt, where it parts from those before it, and how long its first
    token would take. The body is that of a chat, of completions with one prompt, of a response, or
    of Anthropic's messages; nothing is generated, computed, or touched in the cache.
    """
    service: Service = request.app.state.service
    visit: Visit = request.state.visit
    body = await read_body(request, service.settings.body_limit)
    raws = (await decode(body, Raws, service.large_bodies))[0]
    prompt, ignored = await _read(request, body, raws)
    prompt = visit.own(prompt, service.frontend.card)
    off = prompt.cache == "off" or not service.frontend.card.prefix_cache
    limit = 0 if off else None
    if limit is None and prompt.sampling.prompt_logprobs is not None:
        limit = max(0, prompt.sampling.prompt_logprobs_start - 1)
    look = Look(prompt.prompt, prompt.namespace, prompt.tenant, limit)
    looked = await service.frontend.look(look)
    read = service.explainer.lookup(prompt, looked)
    told = await service.text_work(partial(read, visit.body))
    headers = ignored_header(ignored)
    return Json(told, headers=headers)


async def _read(request: Request, body: bytes, raws: Raws) -> tuple[TextRequest, list[str]]:
    """The prompt, and the fields that have no effect on it.

    Raises:
        ApiError, RadixServeError: what the route whose body it is would refuse.
    """
    service: Service = request.app.state.service
    id, tenant = f"lookup-{uuid.uuid4().hex}", request.state.visit.tenant.name
    if "prompt" in raws:
        fields, _ = await decode(body, CompletionRequest, service.large_bodies)
        ignored = triage(raws, CompletionRequest, COMPLETION_REFUSED)
        prompted = await completions.prepared(service, fields, request.headers, id)
        if len(prompted.requests) > 1:
            raise invalid("prompt", "Look up one prompt at a time")
        return prompted.requests[0], ignored
    if "input" in raws or "previous_response_id" in raws:
        response = await of_body(request, body)
        return replace(response.conversation.request, id=id), response.ignored
    if "system" in raws or "anthropic-version" in request.headers:
        return await _message(request, body, raws, id, tenant)
    chat, _ = await decode(body, ChatRequest, service.large_bodies)
    ignored = triage(raws, ChatRequest, CHAT_REFUSED)
    async with conversation.naming_longest(service, chat):
        ready = await conversation.prepared(service, chat, request.headers, id, tenant)
    return ready.request, [*ignored, *ready.ignored]


async def _message(
    request: Request, body: bytes, raws: Raws, id: str, tenant: str
) -> tuple[TextRequest, list[str]]:
    service: Service = request.app.state.service
    fields, _ = await decode(body, MessagesRequest, service.large_bodies)
    ignored = triage(raws, MessagesRequest, MESSAGES_REFUSED)
    check_model(fields.model, service.frontend.card)
    wanted = await service.text_work(partial(asked, fields, raws, service.dialect))
    with own_names():
        async with conversation.naming_longest(service, wanted.chat, wanted.paths.__getitem__):
            ready = await conversation.prepared(service, wanted.chat, request.headers, id, tenant)
    return ready.request, [*ignored, *wanted.ignored, *wanted.renamed(ready.ignored)]
