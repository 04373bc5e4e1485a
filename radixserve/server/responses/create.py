"""``POST /v1/responses``, and what one would cost."""

from __future__ import annotations

import time
from contextlib import aclosing

from radixserve.errors import InvalidRequestError
from radixserve.server.conversation import Conversation
from radixserve.server.endpoint import Call
from radixserve.server.errors import ApiError
from radixserve.server.responses.fields import shown_format
from radixserve.server.responses.live import Live
from radixserve.server.responses.reading import Question, read
from radixserve.server.responses.store import Record, Responses
from radixserve.server.responses.turn import Turn
from radixserve.server.responses.wire import InputTokens, ResponseObject, ResponsesRequest
from radixserve.server.service import Deltas, until_gone
from radixserve.server.sse import EventStream, Framing
from radixserve.tokens import count


async def create_response(call: Call, fields: ResponsesRequest) -> ResponseObject | EventStream:
    store: Responses = call.app.state.responses
    visit, tenant = call.visit, call.tenant
    question, conversation = await read(call, fields)
    asked, options = conversation.request, fields.prompt_cache_options
    visit.compare = (options and options.comparison_response_id) or None
    visit.tally.explain = visit.tally.explain or bool(fields.explain)
    turn = _turn(fields, question, conversation, call)
    deltas = call.service.answers([asked], visit)
    if fields.stream:
        live = Live(turn, question, asked.namespace, deltas, store, tenant)
        framing = Framing(opening=turn.begun(), failure=live.failure)
        return call.streamed(live.events(), framing)
    try:
        await until_gone(call.receive, _whole(turn, deltas))
    except (ApiError, InvalidRequestError) as error:
        raise question.reworded(error) from error
    if turn.response.store:
        record = Record.of(turn.response, question.items, asked.namespace)
        store.put(tenant, question.id, record)
    return turn.response


async def count_input_tokens(call: Call, fields: ResponsesRequest) -> InputTokens:
    """The prompt's, without an answer."""
    _, conversation = await read(call, fields)
    return InputTokens(count(conversation.request.prompt))


async def _whole(turn: Turn, deltas: Deltas) -> None:
    async with aclosing(deltas):
        async for _, news in deltas:
            turn.take(news)


def _turn(
    fields: ResponsesRequest, question: Question, conversation: Conversation, call: Call
) -> Turn:
    asked, sampling = question.asked, conversation.request.sampling
    card, visit = call.service.frontend.card, call.visit
    response = ResponseObject(
        id=question.id,
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
    [answer] = conversation.answers(visit.tally)
    writes = card.prefix_cache and conversation.request.cache == "on"
    return Turn(
        response,
        answer,
        visit.tally,
        before=len(question.items),
        writes=writes,
        compared=visit.compare is not None,
    )
