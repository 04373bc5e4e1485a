"""``POST /v1/responses``, and what one would cost."""

from __future__ import annotations

import time
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from radixserve.engine.frontend import ModelCard
from radixserve.errors import InvalidRequestError
from radixserve.server.answer import headers_of
from radixserve.server.errors import ApiError
from radixserve.server.fields import canonical_header, ignored_header
from radixserve.server.keeping import keep_header
from radixserve.server.responses.fields import shown_format
from radixserve.server.responses.live import Live
from radixserve.server.responses.reading import Ready, read
from radixserve.server.responses.store import Record, Responses
from radixserve.server.responses.turn import Turn
from radixserve.server.responses.wire import InputTokens, ResponseObject
from radixserve.server.service import Deltas, Service, until_gone
from radixserve.server.sse import EventStream, Framing
from radixserve.server.tenants.visit import Visit
from radixserve.server.wire import Json
from radixserve.tokens import count


async def create_response(request: Request) -> Response:
    service: Service = request.app.state.service
    store: Responses = request.app.state.responses
    visit: Visit = request.state.visit
    tenant = visit.tenant.name
    ready = await read(request)
    asked = ready.conversation.request
    headers = headers_of(service, asked, ready.ignored, ready.conversation.canonical)
    turn = _turn(ready, service.frontend.card, visit)
    visit.compare = ready.compare
    visit.tally.explain = visit.tally.explain or bool(ready.fields.explain)
    deltas = service.answers([asked], visit)
    if ready.fields.stream:
        live = Live(turn, ready.items, asked.namespace, deltas, store, tenant, ready.reworded)
        framing = Framing(opening=turn.begun(), failure=live.failure)
        return EventStream(live.events(), service.settings, headers, framing)
    try:
        await until_gone(request.receive, _whole(turn, deltas))
    except (ApiError, InvalidRequestError) as error:
        raise ready.reworded(error) from error
    if turn.response.store:
        store.put(tenant, ready.id, Record.of(turn.response, ready.items, asked.namespace))
    headers |= keep_header(visit.tally.kept())
    return Json(turn.shown(), headers=headers)


async def count_input_tokens(request: Request) -> Response:
    """``POST /v1/responses/input_tokens``: the prompt's, without an answer."""
    ready = await read(request)
    told = InputTokens(count(ready.conversation.request.prompt))
    headers = ignored_header(ready.ignored) | canonical_header(ready.conversation.canonical)
    return Json(told, headers=headers)


async def _whole(turn: Turn, deltas: Deltas) -> None:
    async with aclosing(deltas):
        async for _, news in deltas:
            turn.take(news)


def _turn(ready: Ready, card: ModelCard, visit: Visit) -> Turn:
    fields, asked, conversation = ready.fields, ready.asked, ready.conversation
    sampling = conversation.request.sampling
    response = ResponseObject(
        id=ready.id,
        created_at=int(time.time()),
        model=card.name,
        instructions=fields.instructions,
        previous_response_id=fields.previous_response_id,
        store=fields.store is not False,
        metadata=fields.metadata or {},
        max_output_tokens=fields.max_output_tokens,
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        tools=asked.tools,
        tool_choice=fields.tool_choice or "auto",
        text={"format": shown_format(fields.text.format if fields.text else None)},
        reasoning={"effort": asked.chat.reasoning_effort, "summary": None},
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_logprobs=fields.top_logprobs or 0,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        truncation=fields.truncation or "disabled",
    )
    [answer] = conversation.answers()
    writes = card.prefix_cache and conversation.request.cache == "on"
    return Turn(
        response,
        answer,
        visit.tally,
        before=len(ready.items),
        writes=writes,
        compared=ready.compare is not None,
    )
