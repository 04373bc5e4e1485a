"""Requests, items and answers of OpenAI's Responses API as they travel."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from radixserve.server.diagnostics import PromptCacheDiagnostics
from radixserve.server.fields import REFUSED, Values
from radixserve.server.wire import (
    ChatRequest,
    CommonFields,
    LikeliestTokens,
    Metadata,
    PromptCacheOptions,
    Reuse,
)

HARMLESS = ("stream_options", "return_cached_tokens_details")
"""What chat honours and does not change the answer."""
RESPONSES_REFUSED: Values = {
    # what only chat honours, under its names for it
    **{name: () for name in ChatRequest.__struct_fields__ if name not in HARMLESS},
    **REFUSED,
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "logprobs": (False,),
    "add_special_tokens": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "include_reasoning": (True,),
    "separate_reasoning": (True,),
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "context_management": ([],),
}
RESPONSES_HINTS = {
    "functions": "Use tools",
    "background": "Stream instead",
    "conversation": "Use previous_response_id, or send the conversation as input",
    "prompt": "Prompts are not kept here; send input",
    "messages": "Use input",
    "max_tokens": "Use max_output_tokens",
    "max_completion_tokens": "Use max_output_tokens",
    "response_format": "Use text.format",
    "reasoning_effort": "Use reasoning.effort",
    "logprobs": "Use include, with message.output_text.logprobs",
}

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputText(msgspec.Struct, tag="input_text", omit_defaults=True):
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = None


class OutputText(msgspec.Struct, tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] | None = []


class Refusal(msgspec.Struct, tag="refusal"):
    refusal: str


class ReasoningText(msgspec.Struct, tag="reasoning_text"):
    text: str


class SummaryText(msgspec.Struct, tag="summary_text"):
    text: str


Part = InputText | OutputText | Refusal


class MessageItem(msgspec.Struct, tag="message"):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    id: str | None = None
    status: str | None = None


class FunctionCallItem(msgspec.Struct, tag="function_call"):
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class FunctionCallOutputItem(msgspec.Struct, tag="function_call_output"):
    call_id: str
    output: str | list[InputText]
    id: str | None = None
    status: str | None = None


class ReasoningItem(msgspec.Struct, tag="reasoning"):
    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None
    id: str | None = None
    status: str | None = None


class ItemReference(msgspec.Struct, tag="item_reference"):
    """An item of an earlier response, by its id."""

    id: str


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem
OutputItem = MessageItem | FunctionCallItem | ReasoningItem


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw | UnsetType = UNSET
    strict: bool | None = None


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class ComparedCacheOptions(PromptCacheOptions, kw_only=True):
    comparison_response_id: str | None = None
    """Of a response to compare the prompt with."""


class ResponsesRequest(CommonFields, kw_only=True):
    """OpenAI's fields, and those that chat completions take beside them."""

    refused: ClassVar[Values] = RESPONSES_REFUSED
    hints: ClassVar[dict[str, str]] = RESPONSES_HINTS

    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: dict[str, Any] | None = None
    top_logprobs: LikeliestTokens | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    keep_reasoning: bool | None = None
    prompt_cache_options: ComparedCacheOptions | None = None


class InputTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int
    """Of the prompt, computed and left in the cache."""
    kept_tokens: int | UnsetType = UNSET
    """As in chat completions."""
    keep: str | UnsetType = UNSET


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    radixserve: Reuse | UnsetType = UNSET
    """Where ``explain`` asks for it."""


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response, finished or not: what was asked, and what has been said."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: Status = "in_progress"
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem] = []
    usage: ResponseUsage | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool
    background: bool = False
    metadata: dict[str, str]
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    text: dict[str, Any]
    reasoning: dict[str, Any]
    temperature: float
    top_p: float
    top_logprobs: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    truncation: str
    service_tier: str = "default"
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_diagnostics: PromptCacheDiagnostics | UnsetType | None = UNSET
    """Where ``prompt_cache_options.comparison_response_id`` asks for it."""


class ItemList(msgspec.Struct, frozen=True):
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class DeletedResponse(msgspec.Struct, frozen=True):
    id: str
    released_pages: int
    """That go before all else now."""
    object: str = "response"
    deleted: bool = True


class InputTokens(msgspec.Struct, frozen=True):
    input_tokens: int
    object: str = "response.input_tokens"
