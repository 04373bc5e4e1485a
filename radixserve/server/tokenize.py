"""``POST /tokenize`` and ``/detokenize``: text to token ids and back, with vLLM's field names and
those of llama.cpp's server."""

from __future__ import annotations

from typing import Any

import msgspec

from radixserve.server.conversation import check_messages
from radixserve.server.endpoint import Call
from radixserve.server.errors import invalid, wrong
from radixserve.server.fields import Body
from radixserve.server.keeping import taken_out
from radixserve.server.prompts import packed
from radixserve.server.rendering import rendered
from radixserve.server.service import Service
from radixserve.server.text_memory import Owner
from radixserve.server.tools import check_tools
from radixserve.server.wire import ChatRequest
from radixserve.tokens import unpack

LONGEST_TEXT = 2**23
"""Characters. Counting is meant for more than the model takes, but not for any length."""
MOST_TOKENS = 2**21


class TokenizeRequest(Body, kw_only=True):
    """Either a text or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    """llama.cpp's name for ``prompt``."""
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    keep_reasoning: bool | None = None
    return_token_strs: bool | None = None


class TokenizeResponse(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Body, kw_only=True):
    model: str | None = None
    tokens: list[int]


class DetokenizeResponse(msgspec.Struct):
    prompt: str
    content: str


async def tokenize(call: Call, fields: TokenizeRequest) -> TokenizeResponse:
    if fields.messages is not None:
        check_messages(fields.messages)
    if fields.tools is not None:
        check_tools(fields.tools)
    _, foreign = taken_out(fields.messages or (), fields.tools)  # as a chat has them
    call.visit.ignored += foreign
    owner = Owner(call.tenant, b"", leaves=False)
    service = call.service
    found, call.visit.canonical = await service.text_work(_tokenize, service, fields, owner)
    return found


async def detokenize(call: Call, fields: DetokenizeRequest) -> DetokenizeResponse:
    service = call.service
    if len(fields.tokens) > MOST_TOKENS:
        raise wrong("tokens", f"must hold at most {MOST_TOKENS} ids")
    packed(fields.tokens, "tokens", service.frontend.card.vocab_size)
    tokenizer = service.frontend.tokenizer
    text = await service.text_work(tokenizer.decode, fields.tokens, skip_special_tokens=False)
    return DetokenizeResponse(text, text)


def _tokenize(
    service: Service, fields: TokenizeRequest, owner: Owner
) -> tuple[TokenizeResponse, list[str]]:
    """The answer, and the canonical forms that changed the prompt."""
    tokenizer = service.frontend.tokenizer
    param, text, canonical = _text(service, fields, owner)
    if len(text) > LONGEST_TEXT:
        raise wrong(param, f"must have at most {LONGEST_TEXT} characters")
    special = fields.messages is None
    if fields.add_special_tokens is not None:
        special = fields.add_special_tokens
    if fields.messages is not None and not special:
        tokens = service.memory.encode(text, owner, param=param).tokens  # as a chat has them
    else:
        tokens = tokenizer.encode(text, add_special_tokens=special, param=param)
    ids = unpack(tokens)
    strings = [tokenizer.token_text(each) for each in ids] if fields.return_token_strs else None
    length = service.frontend.card.max_model_len
    return TokenizeResponse(len(ids), length, ids, strings), canonical


def _text(service: Service, fields: TokenizeRequest, owner: Owner) -> tuple[str, str, list[str]]:
    """The name of the field that was sent, the text that it comes to, and the canonical forms that
    changed it.

    Raises:
        ApiError: 400, not exactly one of them was sent.
        InvalidRequestError: the template cannot render the messages.
    """
    sent = {
        name: value
        for name in ("prompt", "content", "messages")
        if (value := getattr(fields, name)) is not None
    }
    if len(sent) != 1:
        raise invalid("prompt", "Send exactly one of prompt, content and messages")
    [(param, value)] = sent.items()
    if isinstance(value, str):
        return param, value, []
    chat = ChatRequest(
        messages=value,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        keep_reasoning=fields.keep_reasoning,
    )
    shown = rendered(service, chat, fields.tools or [], fields.chat_template_kwargs, owner)
    return param, shown.text, shown.canonical
