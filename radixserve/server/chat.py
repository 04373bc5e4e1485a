"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import UNSET, UnsetType

from radixserve.engine.frontend import TextDelta, TokenLogprob
from radixserve.server.answer import Envelope, clipped, respond, token_ids
from radixserve.server.conversation import Conversation, prepared
from radixserve.server.endpoint import Call
from radixserve.server.parsed import Piece, joined_message
from radixserve.server.scored import scored
from radixserve.server.service import Deltas
from radixserve.server.sse import EventStream
from radixserve.server.tally import Tally
from radixserve.server.wire import (
    ChatChoice,
    ChatLogprobs,
    ChatRequest,
    Completion,
    Delta,
    FunctionCall,
    PromptLogprobs,
    TokenLogprobObject,
    ToolCall,
    TopLogprob,
)
from radixserve.tokens import unpack


async def chat_completions(call: Call, fields: ChatRequest) -> Completion[ChatChoice] | EventStream:
    envelope = Envelope(
        fields,
        call.service.frontend.card.name,
        prefix="chatcmpl-",
        kind="chat.completion",
        chunk_kind="chat.completion.chunk",
    )
    conversation = await prepared(call, fields, envelope.id)
    call.visit.ignored += conversation.ignored
    answer = ChatAnswer(fields, conversation, call.visit.tally)
    if fields.return_token_ids:
        envelope.prompt_token_ids = unpack(conversation.request.prompt)
    return await respond(call, envelope, [conversation.request], answer)


class ChatAnswer:
    """The answer in the shape of chat completions."""

    def __init__(self, fields: ChatRequest, conversation: Conversation, tally: Tally):
        self._answers = conversation.answers(tally)
        self._logprobs = bool(fields.logprobs)
        self._ids = bool(fields.return_token_ids)
        asked = fields.prompt_logprobs is not None
        self.prompt_logprobs: PromptLogprobs | UnsetType = [None] if asked else UNSET

    async def whole(self, deltas: Deltas) -> list[ChatChoice]:
        said: list[list[Piece]] = [[] for _ in self._answers]
        pieces: list[list[TextDelta]] = [[] for _ in self._answers]
        async with aclosing(deltas):
            async for _, news in deltas:
                said[news.index] += self._answers[news.index].take(news)
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
                said = [_delta(piece) for piece in self._answers[index].take(news)]
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

    def _shown(self, news: list[TextDelta]) -> ChatLogprobs | None:
        if not self._logprobs:
            return None
        return ChatLogprobs([token_logprob(each) for delta in news for each in delta.logprobs])

    def _told(self, news: list[TextDelta]) -> list[int] | UnsetType:
        return [each for delta in news for each in token_ids(delta)] if self._ids else UNSET


def _delta(piece: Piece) -> Delta:
    match piece.kind:
        case "content":
            return Delta(content=piece.text)
        case "reasoning":
            return Delta(reasoning=piece.text, reasoning_content=piece.text)
        case "call":
            call = ToolCall(piece.call, piece.id, "function", FunctionCall(piece.text))
        case "arguments":
            call = ToolCall(piece.call, function=FunctionCall(arguments=piece.text))
    return Delta(tool_calls=[call])


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
