"""Requests and answers of Anthropic's Messages API as they travel."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from radixserve.server.diagnostics import Diagnostics
from radixserve.server.fields import Body, Values
from radixserve.server.wire import CacheFields, Priority, Reuse, Timeout


class InputMessage(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]
    """Text, or blocks, which are one of the next."""


class TextInput(msgspec.Struct, kw_only=True):
    type: str
    text: str
    cache_control: Any = None
    """Of all kinds of blocks: their end is marked, see ``radixserve.server.messages.marks``."""


class ToolUseInput(msgspec.Struct, kw_only=True):
    type: str
    id: str
    name: str
    input: dict[str, Any]
    caller: Any = None
    cache_control: Any = None


class ToolResultInput(msgspec.Struct, kw_only=True):
    type: str
    tool_use_id: str
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None
    cache_control: Any = None


class ThinkingInput(msgspec.Struct, kw_only=True):
    type: str
    thinking: str
    signature: str | None = None


class RedactedThinkingInput(msgspec.Struct, kw_only=True):
    type: str
    data: str | None = None


class ToolInput(msgspec.Struct, kw_only=True):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: Any = None


class ToolChoiceInput(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingSwitch(msgspec.Struct, kw_only=True):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: msgspec.Raw


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: str | None = None
    format: OutputFormat | None = None


class CountTokensRequest(Body, kw_only=True):
    """What makes the prompt. None is always the same as absent."""

    refused: ClassVar[Values] = {
        "mcp_servers": ([],),
        "container": (),
        "output_format": (),
        "response_format": (),
        "stop": ([],),
    }

    model: str | None = None
    messages: list[InputMessage]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoiceInput | None = None
    thinking: ThinkingSwitch | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Our own, as in chat completions."""


class DiagnosticsInput(msgspec.Struct, kw_only=True):
    previous_message_id: str | None = None
    """Of the message whose prompt this one is compared with."""


class MessagesRequest(CountTokensRequest, kw_only=True):
    max_tokens: int
    """0 fills the cache with the prompt and answers nothing."""
    cache_control: Any = None
    """The end of the last block is marked."""
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    # What follows is our own, as in chat completions.
    min_p: float | None = None
    seed: int | None = None
    priority: Priority | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    cache: CacheFields | None = None
    timeout: Timeout | None = None
    explain: bool | None = None
    diagnostics: DiagnosticsInput | None = None
    session_id: str | None = None
    session_end: bool | None = None
    keep_for: str | float | None = None
    next_request_in: str | float | None = None
    prewarm: bool | None = None
    keep_reasoning: bool | None = None


class CountTokensResponse(msgspec.Struct):
    input_tokens: int


class DirectCaller(msgspec.Struct, frozen=True, tag_field="type", tag="direct"):
    """Who calls a tool: the model itself, and no program that it wrote."""


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller = DirectCaller()


Block = TextBlock | ThinkingBlock | ToolUseBlock


class CacheCreation(msgspec.Struct, frozen=True):
    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True):
    """The prompt has as many tokens as the first three together."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    cache_creation: CacheCreation
    kept_tokens: int | UnsetType = UNSET
    """As in chat completions."""
    keep: str | UnsetType = UNSET
    server_tool_use: None = None
    service_tier: Literal["standard"] = "standard"
    inference_geo: None = None
    radixserve: Reuse | UnsetType = UNSET
    """Where ``explain`` asks for it."""


StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class MessageObject(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    model: str
    usage: MessageUsage
    content: list[Block] = []
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    diagnostics: Diagnostics | UnsetType | None = UNSET
    """Where ``diagnostics`` asks for it."""
    role: Literal["assistant"] = "assistant"
    stop_details: None = None
    container: None = None


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: MessageObject


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class TextPiece(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingPiece(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignaturePiece(msgspec.Struct, tag_field="type", tag="signature_delta"):
    signature: str


class InputPiece(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextPiece | ThinkingPiece | SignaturePiece | InputPiece


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


class Stop(msgspec.Struct):
    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None = None
    container: None = None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    delta: Stop
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    pass


News = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping
"""The events of a stream, each named by its type."""


class AnthropicModel(msgspec.Struct, frozen=True, tag_field="type", tag="model"):
    id: str
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int
    lifecycle: Literal["active"] = "active"


class AnthropicModels(msgspec.Struct, frozen=True):
    data: list[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
