"""Requests and answers of the completion APIs as they travel: OpenAI's names, and vLLM's beside."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from radixserve.scheduling.sampling import MAX_LOGPROBS
from radixserve.server.fields import REFUSED, Body, Values

T = TypeVar("T")

LARGEST_PRIORITY = 2**31 - 1
Priority = Annotated[int, Meta(ge=-LARGEST_PRIORITY, le=LARGEST_PRIORITY)]
Timeout = Annotated[float, Meta(gt=0.0, le=86_400.0)]
"""Seconds."""
LikeliestTokens = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
"""In the place of each token."""
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]
"""As much as OpenAI takes."""


class CacheFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["on", "read-only", "no-store", "off"] | None = None
    """on: take cached prefixes and leave our own; read-only and no-store, which say the same from
    two sides: take, leave nothing; off: neither."""


class PromptCacheOptions(msgspec.Struct, kw_only=True):
    """As OpenAI has it; a time may be a number of seconds, too."""

    mode: Literal["implicit", "explicit"] | None = None
    """implicit: the end of the last message is marked, too."""
    ttl: str | float | None = None
    """Of marks that say nothing of it."""
    prewarm: bool | None = None


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw | UnsetType = UNSET
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    json_schema: JsonSchema | None = None
    schema: msgspec.Raw | UnsetType = UNSET
    """Of a ``json_object``, as llama.cpp has it."""


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of these, as vLLM has it."""

    json: msgspec.Raw | UnsetType = UNSET
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: msgspec.Raw | UnsetType = UNSET


class CommonFields(Body, kw_only=True):
    """What every API that generates in OpenAI's ways has. None is always the same as absent."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Priority | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    cache: CacheFields | None = None
    timeout: Timeout | None = None
    explain: bool | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_key: str | None = None
    session_id: str | None = None
    session_end: bool | None = None
    keep_for: str | float | None = None
    next_request_in: str | float | None = None


class GenerationFields(CommonFields, kw_only=True):
    """What chat completions and completions have in common besides."""

    stream: bool | None = None
    stream_options: dict[str, bool | None] | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, Meta(ge=-10.0, le=10.0)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    max_tokens: int | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool | None = None
    return_cached_tokens_details: bool | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    guided_json: msgspec.Raw | UnsetType = UNSET
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: msgspec.Raw | UnsetType = UNSET
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None


class ChatRequest(GenerationFields, kw_only=True):
    refused: ClassVar[Values] = REFUSED
    messages: list[dict[str, Any]]
    logprobs: bool | None = None
    top_logprobs: LikeliestTokens | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    keep_reasoning: bool | None = None
    prewarm: bool | None = None

    @property
    def prewarms(self) -> bool:
        """Whether nothing is to be generated: the prompt alone is wanted in the cache."""
        nothing = self.max_tokens == 0 and self.max_completion_tokens is None
        return self.asks_to_prewarm or (nothing and self.prompt_logprobs is None)

    @property
    def asks_to_prewarm(self) -> bool:
        """Whether it says so in so many words."""
        options = self.prompt_cache_options
        return bool(self.prewarm or (options is not None and options.prewarm))


class CompletionRequest(GenerationFields, kw_only=True):
    refused: ClassVar[Values] = {
        **{name: neutral for name, neutral in REFUSED.items() if name != "echo"},
        "max_completion_tokens": (),
        "top_logprobs": (0,),
        "tools": (),
        "tool_choice": ("none", "auto"),
        "include_reasoning": (True,),
    }

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int
    kept_tokens: int | UnsetType = UNSET
    """Where something was to be kept for a time: how much of it is, from the front, and whether
    that is all of it."""
    keep: str | UnsetType = UNSET


class Reuse(msgspec.Struct, frozen=True):
    """Where the prompt's tokens came from."""

    reused_tokens: int
    """Pages of the cache, read in place."""
    copied_tokens: int
    """Parts of blocks, copied from the cache."""
    computed_tokens: int
    shared_pages: int | UnsetType = UNSET
    """Of a beam search: pages that its beams read together, and that they would have needed in
    addition if they had not."""
    time_saved_ms: float | UnsetType | None = UNSET
    """What the others would have cost, an estimate; None as long as nothing was measured."""
    reasons: dict[str, int] | UnsetType = UNSET
    """Computed tokens by the reason for which they were."""


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class UsageObject(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    radixserve: Reuse | UnsetType = UNSET
    """Only where ``return_cached_tokens_details`` or ``explain`` asks for it, and after a beam
    search."""


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobObject(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprobObject]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """None at the first token of an echoed prompt, which follows nothing."""

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


class PromptLogprob(msgspec.Struct):
    """As vLLM has it."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[msgspec.Raw | None]
"""For each token of a prompt ``dict[str, PromptLogprob]``, by token id, its own first; None for the
first one. They are encoded as they come: there may be many."""


class FunctionCall(msgspec.Struct):
    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCall(msgspec.Struct):
    """A call, or a piece of one: then only the first piece has its id, type and name."""

    index: int | UnsetType = UNSET
    """In a stream."""
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionCall = msgspec.field(default_factory=FunctionCall)


class Message(msgspec.Struct):
    role: str
    content: str | None
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Delta(msgspec.Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: Message | UnsetType = UNSET
    """In a whole answer."""
    delta: Delta | UnsetType = UNSET
    """In a chunk of a stream."""
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    """Where ``return_token_ids`` asks for them, and so with those of a prompt."""


class CompletionChoice(msgspec.Struct):
    index: int
    text: str = ""
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    """In the first choice of a prompt, where they were asked for."""


class Completion(msgspec.Struct, Generic[T]):
    """A whole answer or a chunk of one, of either API; ``object`` says which; ``T`` is a choice."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[T]
    usage: UsageObject | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    """Of a chat, in the first chunk of a stream."""
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    """Of a chat, where they were asked for."""


class Json(Response, Generic[T]):
    """A ``T``, or something else that msgspec can encode, as JSON; bytes are JSON already."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else msgspec.json.encode(content)
