"""The news of an answer as content blocks: one after the other, each of one kind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

import msgspec
from msgspec import UNSET, UnsetType

from radixserve.engine.frontend import ModelCard, TextDelta
from radixserve.server.conversation import Conversation
from radixserve.server.diagnostics import Diagnostics, of_message
from radixserve.server.messages.wire import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    CacheCreation,
    DiagnosticsInput,
    InputPiece,
    MessageDelta,
    MessageObject,
    MessageStart,
    MessageStop,
    MessageUsage,
    News,
    OutputTokensDetails,
    SignaturePiece,
    Stop,
    StopReason,
    TextBlock,
    TextPiece,
    ThinkingBlock,
    ThinkingPiece,
    ToolUseBlock,
)
from radixserve.server.service import Deltas
from radixserve.server.tally import Tally
from radixserve.server.wire import Delta, ToolCall

CALL_PREFIX = "toolu_"
AN_HOUR = 3600
"""Seconds."""
SIGNATURE = "radixserve"
"""Of all thinking: clients send it back only with a signature, and here nobody checks it."""
NO_OBJECT = "INVALID_JSON"
"""The key under which a call has the text of its arguments where that is no JSON object, as
Anthropic's documentation advises clients to have it."""


class MessageAnswer:
    """The one answer to a request, in the shape of the Messages API.

    Args:
        max_tokens: As the client has it: 0 shows nothing of the answer.
        diagnostics: What the prompt is to be compared with, if it is.
    """

    def __init__(
        self,
        id: str,
        conversation: Conversation,
        card: ModelCard,
        tally: Tally,
        *,
        max_tokens: int,
        diagnostics: DiagnosticsInput | None = None,
    ):
        self._id = id
        self._request = conversation.request
        self._card = card
        self._tally = tally
        self._max_tokens = max_tokens
        self._diagnostics = diagnostics
        [self._parsed] = conversation.answers(CALL_PREFIX)
        self._blocks = Blocks()

    async def whole(self, deltas: Deltas) -> MessageObject:
        said: list[News] = []
        async with aclosing(deltas):
            async for _, delta in deltas:
                said += self._take(delta)
        stop = self._stop(delta)
        return MessageObject(
            self._id,
            self._card.name,
            self._usage(),
            joined_blocks(said),
            stop.stop_reason,
            stop.stop_sequence,
            self._compared(),
        )

    async def news(self, deltas: Deltas) -> AsyncGenerator[News, None]:
        """What a stream says. It begins with the first token, once the prompt's cost is known."""
        begun = False
        async with aclosing(deltas):
            async for _, delta in deltas:
                if not begun:
                    begun = True
                    message = MessageObject(self._id, self._card.name, self._usage())
                    message.diagnostics = self._compared()
                    yield MessageStart(message)
                for news in self._take(delta):
                    yield news
        yield MessageDelta(self._stop(delta), self._usage())
        yield MessageStop()

    def _take(self, delta: TextDelta) -> list[News]:
        if not self._max_tokens:
            return []
        before = self._parsed.reasoning_tokens
        said = self._parsed.take(delta)
        self._tally.reasoning += self._parsed.reasoning_tokens - before
        news = [each for piece in said for each in self._blocks.take(piece)]
        return news if delta.finish is None else news + self._blocks.end()

    def _stop(self, last: TextDelta) -> Stop:
        reason: StopReason = "max_tokens"
        if last.finish == "stop" and self._max_tokens:
            if isinstance(last.stop, str):
                return Stop("stop_sequence", last.stop)
            reason = "tool_use" if self._blocks.calls else "end_turn"
        elif last.stop is None and last.usage.completion_tokens < self._max_tokens:
            reason = "model_context_window_exceeded"
        return Stop(reason, None)

    def _compared(self) -> Diagnostics | UnsetType | None:
        if self._diagnostics is None:
            return UNSET
        if not self._diagnostics.previous_message_id:
            return None
        return of_message(self._tally.steps.get(0))

    def _usage(self) -> MessageUsage:
        """What it has cost so far. What a prompt leaves in the cache is its whole blocks."""
        usage = self._tally.usage()
        prompt, read = usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens
        page, created = self._card.page_size, 0
        if page and self._card.prefix_cache and self._request.cache == "on":
            created = max(0, prompt // page * page - read)
        details = usage.prompt_tokens_details
        return MessageUsage(
            kept_tokens=details.kept_tokens,
            keep=details.keep,
            input_tokens=prompt - read - created,
            cache_creation_input_tokens=created,
            cache_read_input_tokens=read,
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(
                usage.completion_tokens_details.reasoning_tokens
            ),
            cache_creation=self._creation(read, created),
            radixserve=usage.radixserve,
        )

    def _creation(self, read: int, created: int) -> CacheCreation:
        """What was written, by how long it is to be kept: up to a mark that says an hour or more,
        an hour."""
        keeping = self._request.keeping
        marks = () if keeping is None else keeping.marks
        ends = [each.tokens for each in marks if each.tokens and each.seconds >= AN_HOUR]
        hour = min(created, max(0, max(ends, default=0) - read))
        return CacheCreation(created - hour, hour)


class Blocks:
    """Cuts an answer into blocks, whose places are dense from 0."""

    def __init__(self) -> None:
        self.calls = 0
        self._place = -1
        self._open: type[Block] | None = None

    def take(self, delta: Delta) -> list[News]:
        """What is said of ``delta``; O(its size)."""
        news: list[News] = []
        if delta.reasoning is not UNSET and delta.reasoning:
            news += self._within(ThinkingBlock("", ""))
            news.append(BlockDelta(self._place, ThinkingPiece(delta.reasoning)))
        if delta.content is not UNSET and delta.content:
            news += self._within(TextBlock(""))
            news.append(BlockDelta(self._place, TextPiece(delta.content)))
        for piece in [] if delta.tool_calls is UNSET else delta.tool_calls:
            news += self._call(piece)
        return news

    def end(self) -> list[News]:
        """The end of the block at hand, if there is one."""
        if self._open is None:
            return []
        news: list[News] = []
        if self._open is ThinkingBlock:
            news.append(BlockDelta(self._place, SignaturePiece(SIGNATURE)))
        self._open = None
        return [*news, BlockStop(self._place)]

    def _call(self, piece: ToolCall) -> list[News]:
        news: list[News] = []
        if piece.id is not UNSET:
            name = "" if piece.function.name is UNSET else piece.function.name
            news += self._begin(ToolUseBlock(piece.id, name, {}))
            self.calls += 1
        if piece.function.arguments:
            news.append(BlockDelta(self._place, InputPiece(piece.function.arguments)))
        return news

    def _within(self, block: Block) -> list[News]:
        """Begin ``block``, unless the one at hand is of its kind."""
        return [] if self._open is type(block) else self._begin(block)

    def _begin(self, block: Block) -> list[News]:
        news = self.end()
        self._open = type(block)
        self._place += 1
        return [*news, BlockStart(self._place, block)]


def joined_blocks(said: Iterable[News]) -> list[Block]:
    """The blocks that ``said`` are the news of, as a client of a stream would have them."""
    blocks: list[Block] = []
    pieces: list[list[str]] = []
    for news in said:
        match news:
            case BlockStart(content_block=block):
                blocks.append(block)
                pieces.append([])
            case BlockDelta(delta=TextPiece(text=text)):
                pieces[-1].append(text)
            case BlockDelta(delta=ThinkingPiece(thinking=text)):
                pieces[-1].append(text)
            case BlockDelta(delta=InputPiece(partial_json=text)):
                pieces[-1].append(text)
    for block, parts in zip(blocks, pieces, strict=True):
        match block:
            case TextBlock():
                block.text = "".join(parts)
            case ThinkingBlock():
                block.thinking, block.signature = "".join(parts), SIGNATURE
            case ToolUseBlock():
                block.input = _arguments("".join(parts))
    return blocks


def _arguments(text: str) -> dict[str, object]:
    """The arguments of a call, which a model may write wrongly or leave unfinished."""
    try:
        found = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {NO_OBJECT: text}
