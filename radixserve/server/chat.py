"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from radixserve.engine.frontend import TextDelta, TokenLogprob
from radixserve.scheduling.sampling import MAX_LOGPROBS
from radixserve.server.answer import Envelope, clipped, respond
from radixserve.server.dialect import Reading
from radixserve.server.fields import CHAT_REFUSED, triage
from radixserve.server.limits import decode, read_body
from radixserve.server.parameters import check_model, sampling_params, text_request
from radixserve.server.parsed import ParsedAnswer, call_id, joined_message
from radixserve.server.service import Deltas, Service
from radixserve.server.structured import check_form, form_of
from radixserve.server.tally import Tally
from radixserve.server.wire import (
    ChatChoice,
    ChatLogprobs,
    ChatRequest,
    Delta,
    TokenLogprobObject,
    TopLogprob,
    invalid,
)

PART_FIELDS = frozenset({"type", "text"})


async def chat_completions(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_body(request, service.settings.body_limit)
    fields, raws = await decode(body, ChatRequest, service.large_bodies)
    ignored = triage(raws, ChatRequest, CHAT_REFUSED)
    card = service.frontend.card
    check_model(fields.model, card)
    length = ("max_tokens", fields.max_tokens)
    if fields.max_completion_tokens is not None:
        length = ("max_completion_tokens", fields.max_completion_tokens)
    form = form_of(fields)
    sampling = sampling_params(
        fields,
        card,
        max_tokens=length,
        logprobs=("top_logprobs", _top_logprobs(fields)),
        grammar=None if form is None else form.grammar,
    )
    envelope = Envelope.of(
        fields,
        card.name,
        prefix="chatcmpl-",
        kind="chat.completion",
        chunk_kind="chat.completion.chunk",
    )
    continued = bool(fields.continue_final_message)
    draft = text_request(
        fields,
        request.headers,
        envelope.id,
        sampling=sampling,
        continuation=continued,
        most=service.frontend.most,
    )
    reading = service.dialect.reading(fields)
    template_kwargs, without_effect = service.dialect.template_kwargs(fields)
    service.check_length(len(fields.messages), "messages", at_least=True)
    check_messages(fields.messages)
    ignored += [*without_effect, *_ignored_in_messages(fields.messages)]
    service.check_load()
    await check_form(service, form)
    encode = partial(_encode, service, fields, reading, template_kwargs)
    prompt, reading = await service.text_work(encode)
    prompts = [replace(draft, prompt=prompt, markers=reading.formats.markers)]
    new_id = partial(call_id, service.dialect.id_length)
    answer = ChatAnswer(fields, draft.n, reading, request.state.tally, new_id)
    return await respond(request, envelope, ignored, prompts, answer)


def _encode(
    service: Service, fields: ChatRequest, reading: Reading, template_kwargs: dict[str, Any]
) -> tuple[bytes, Reading]:
    """The prompt in tokens, and how answers to it are read."""
    continued = bool(fields.continue_final_message)
    opened = fields.add_generation_prompt
    text = service.frontend.tokenizer.render_chat(
        fields.messages,
        tools=reading.tools,
        add_generation_prompt=not continued if opened is None else opened,
        continue_final_message=continued,
        template_kwargs=template_kwargs,
    )
    special = bool(fields.add_special_tokens)
    prompt = service.encode(lambda: text, param="messages", add_special_tokens=special)
    return prompt, reading.after(text, fields.messages, continued=continued)


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


class ChatAnswer:
    """The answer in the shape of chat completions."""

    def __init__(
        self,
        fields: ChatRequest,
        n: int,
        reading: Reading,
        tally: Tally,
        new_id: Callable[[], str],
    ):
        self._answers = [ParsedAnswer(reading, new_id) for _ in range(n)]
        self._logprobs = bool(fields.logprobs)
        self._tally = tally

    async def whole(self, deltas: Deltas) -> list[ChatChoice]:
        said: list[list[Delta]] = [[] for _ in self._answers]
        pieces: list[list[TextDelta]] = [[] for _ in self._answers]
        async with aclosing(deltas):
            async for _, news in deltas:
                said[news.index] += self._take(news)
                pieces[news.index].append(news)
        return [
            ChatChoice(
                index=index,
                message=joined_message(said[index]),
                logprobs=self._shown(news),
                finish_reason=self._answers[index].finish_reason(news[-1].finish or "stop"),
                stop_reason=news[-1].stop,
            )
            for index, news in enumerate(pieces)
        ]

    async def chunks(self, deltas: Deltas) -> AsyncGenerator[list[ChatChoice], None]:
        """Each choice begins with its role."""
        begun: set[int] = set()
        async with aclosing(deltas):
            async for _, news in deltas:
                index = news.index
                if index not in begun:
                    begun.add(index)
                    yield [ChatChoice(index, delta=Delta("assistant", ""))]
                said = self._take(news)
                if not said and news.logprobs:
                    said = [Delta(content="")]
                for place, delta in enumerate(said):
                    shown = None if place else self._shown([news])
                    yield [ChatChoice(index, delta=delta, logprobs=shown)]
                if news.finish is not None:
                    reason = self._answers[index].finish_reason(news.finish)
                    yield [
                        ChatChoice(
                            index, delta=Delta(), finish_reason=reason, stop_reason=news.stop
                        )
                    ]

    def _take(self, news: TextDelta) -> list[Delta]:
        answer = self._answers[news.index]
        before = answer.reasoning_tokens
        said = answer.take(news)
        self._tally.reasoning += answer.reasoning_tokens - before
        return said

    def _shown(self, news: list[TextDelta]) -> ChatLogprobs | None:
        if not self._logprobs:
            return None
        return ChatLogprobs([_logprob(each) for delta in news for each in delta.logprobs])


def _logprob(chosen: TokenLogprob) -> TokenLogprobObject:
    return TokenLogprobObject(
        chosen.token,
        clipped(chosen.logprob),
        list(chosen.bytes),
        [
            TopLogprob(other.token, clipped(other.logprob), list(other.bytes))
            for other in chosen.top
        ],
    )
