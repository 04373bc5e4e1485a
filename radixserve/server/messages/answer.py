"""The news of an answer as content blocks: one after the other, each of one kind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from itertools import groupby

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
from radixserve.server.parsed import Piece
from radixserve.server.service import Deltas
from radixserve.server.tally import Tally

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
        [self._parsed] = conversation.answers(tally, CALL_PREFIX)
        self._calls = False
        """Whether the answer has a call."""

    async def whole(self, deltas: Deltas) -> MessageObject:
        said: list[Piece] = []
        async with aclosing(deltas):
            async for _, delta in deltas:
                said += self._take(delta)
        stop = self._stop(delta)
        return MessageObject(
            self._id,
            self._card.name,
            self._usage(),
            blocks_of(said),
            stop.stop_reason,
            stop.stop_sequence,
            self._compared(),
        )

    async def news(self, deltas: Deltas) -> AsyncGenerator[News, None]:
        """What a stream says. It begins with the first token, once the prompt's cost is known."""
        begun, blocks = False, Blocks()
        async with aclosing(deltas):
            async for _, delta in deltas:
                if not begun:
                    begun = True
                    message = MessageObject(self._id, self._card.name, self._usage())
                    message.diagnostics = self._compared()
                    yield MessageStart(message)
                for piece in self._take(delta):
                    for news in blocks.take(piece):
                        yield news
        for news in blocks.end():
            yield news
        yield MessageDelta(self._stop(delta), self._usage())
        yield MessageStop()

    def _take(self, delta: TextDelta) -> list[Piece]:
        if not self._max_tokens:
            return []
        said = [each for each in self._parsed.take(delta) if each.text]
        self._calls = self._calls or any(each.kind == "call" for each in said)
        return said

    def _stop(self, last: TextDelta) -> Stop:
        reason: StopReason = "max_tokens"
        if last.finish == "stop" and self._max_tokens:
            if isinstance(last.stop, str):
                return Stop("stop_sequence", last.stop)
            reason = "tool_use" if self._calls else "end_turn"
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
        self._place = -1
        self._open: type[Block] | None = None

    def take(self, piece: Piece) -> list[News]:
        """What is said of ``piece``; O(its size)."""
        match piece.kind:
            case "call":
                return self._begin(ToolUseBlock(piece.id, piece.text, {}))
            case "arguments":
                return [BlockDelta(self._place, InputPiece(piece.text))]
            case "content":
                begun = self._within(TextBlock(""))
                return [*begun, BlockDelta(self._place, TextPiece(piece.text))]
            case "reasoning":
                begun = self._within(ThinkingBlock("", ""))
                return [*begun, BlockDelta(self._place, ThinkingPiece(piece.text))]

    def end(self) -> list[News]:
        """The end of the block at hand, if there is one."""
        if self._open is None:
            return []
        news: list[News] = []
        if self._open is ThinkingBlock:
            news.append(BlockDelta(self._place, SignaturePiece(SIGNATURE)))
        self._open = None
        return [*news, BlockStop(self._place)]

    def _within(self, block: Block) -> list[News]:
        """Begin ``block``, unless the one at hand is of its kind."""
        return [] if self._open is type(block) else self._begin(block)

    def _begin(self, block: Block) -> list[News]:
        news = self.end()
        self._open = type(block)
        self._place += 1
        return [*news, BlockStart(self._place, block)]


def blocks_of(said: Iterable[Piece]) -> list[Block]:
    """The blocks that ``said`` are the pieces of, as a client of a stream would have them."""
    blocks: list[Block] = []
    for (kind, _), pieces in groupby(said, key=_block):
        first, *rest = pieces
        text = "".join(each.text for each in rest)
        if kind == "call":
            blocks.append(ToolUseBlock(first.id, first.text, _arguments(text)))
        elif kind == "content":
            blocks.append(TextBlock(first.text + text))
        else:
            blocks.append(ThinkingBlock(first.text + text, SIGNATURE))
    return blocks


def _block(piece: Piece) -> tuple[str, int]:
    """The same for neighbours that are one block's."""
    return "call" if piece.kind == "arguments" else piece.kind, piece.call


def _arguments(text: str) -> dict[str, object]:
    """The arguments of a call, which a model may write wrongly or leave unfinished."""
    try:
        found = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {NO_OBJECT: text}
