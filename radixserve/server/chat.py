"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from radixserve.engine.frontend import TextDelta, TokenLogprob
from radixserve.server.answer import Envelope, clipped, respond, token_ids
from radixserve.server.conversation import Conversation, naming_longest, prepared
from radixserve.server.fields import CHAT_REFUSED, triage, unknown_options
from radixserve.server.limits import read_json
from radixserve.server.parsed import joined_message
from radixserve.server.scored import scored
from radixserve.server.service import Deltas, Service
from radixserve.server.tally import Tally
from radixserve.server.wire import (
    ChatChoice,
    ChatLogprobs,
    ChatRequest,
    Delta,
    PromptCacheOptions,
    PromptLogprobs,
    TokenLogprobObject,
    TopLogprob,
)
from radixserve.tokens import unpack


async def chat_completions(request: Request) -> Response:
    service: Service = request.app.state.service
    fields, raws = await read_json(request, ChatRequest)
    ignored = triage(raws, ChatRequest, CHAT_REFUSED)
    ignored += unknown_options(raws, PromptCacheOptions)
    envelope = Envelope.of(
        fields,
        service.frontend.card.name,
        prefix="chatcmpl-",
        kind="chat.completion",
        chunk_kind="chat.completion.chunk",
    )
    tenant = request.state.visit.tenant.name
    async with naming_longest(service, fields):
        conversation = await prepared(service, fields, request.headers, envelope.id, tenant)
    answer = ChatAnswer(fields, conversation, request.state.tally)
    ignored += conversation.ignored
    if fields.return_token_ids:
        envelope = replace(envelope, prompt_token_ids=unpack(conversation.request.prompt))
    prompts, canonical = [conversation.request], conversation.canonical
    return await respond(request, envelope, ignored, prompts, answer, canonical)


class ChatAnswer:
    """The answer in the shape of chat completions."""

    def __init__(self, fields: ChatRequest, conversation: Conversation, tally: Tally):
        self._answers = conversation.answers()
        self._logprobs = bool(fields.logprobs)
        self._ids = bool(fields.return_token_ids)
        self._tally = tally
        asked = fields.prompt_logprobs is not None
        self.prompt_logprobs: PromptLogprobs | UnsetType = [None] if asked else UNSET

    async def whole(self, deltas: Deltas) -> list[ChatChoice]:
        said: list[list[Delta]] = [[] for _ in self._answers]
        pieces: list[list[TextDelta]] = [[] for _ in self._answers]
        async with aclosing(deltas):
            async for _, news in deltas:
                said[news.index] += self._take(news)
                pieces[news.index].append(news)
                if self.prompt_logprobs is not UNSET:
                    self.prompt_logprobs += map(scored, news.prompt_logprobs)
        return [
            ChatChoice(
                index=index,
                message=joined_message(said[index]),
                logprobs=self._shown(news),
                finish_reason=self._answers[index].finish_reason(news[-1].finish or "stop"),
                stop_reason=news[-1].stop,
                token_ids=self._told(news),
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
                if not said and (news.logprobs or (self._ids and token_ids(news))):
                    said = [Delta(content="")]
                shown, ids = self._shown([news]), self._told([news])
                for delta in said:
                    yield [ChatChoice(index, delta=delta, logprobs=shown, token_ids=ids)]
                    shown, ids = None, UNSET
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
        return ChatLogprobs([token_logprob(each) for delta in news for each in delta.logprobs])

    def _told(self, news: list[TextDelta]) -> list[int] | UnsetType:
        return [each for delta in news for each in token_ids(delta)] if self._ids else UNSET


def token_logprob(chosen: TokenLogprob) -> TokenLogprobObject:
    """What is told of a token, and of its rivals."""
    return TokenLogprobObject(
        chosen.token,
        clipped(chosen.logprob),
        list(chosen.bytes),
        [
            TopLogprob(other.token, clipped(other.logprob), list(other.bytes))
            for other in chosen.top
        ],
    )
