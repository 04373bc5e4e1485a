"""``POST /tokenize`` and ``/detokenize``: text to token ids and back, with vLLM's field names and
those of llama.cpp's server."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.server.conversation import check_messages
from radixserve.server.fields import canonical_header, ignored_header
from radixserve.server.keeping import taken_out
from radixserve.server.limits import read_json
from radixserve.server.parameters import check_model
from radixserve.server.prompts import packed
from radixserve.server.recall import own_calls, recalled
from radixserve.server.rendering import keeps_reasoning
from radixserve.server.service import Service
from radixserve.server.text_memory import Owner
from radixserve.server.tools import check_tools
from radixserve.server.wire import Json, invalid
from radixserve.tokens import unpack

LONGEST_TEXT = 2**23
"""Characters. Counting is meant for more than the model takes, but not for any length."""
MOST_TOKENS = 2**21


class TokenizeRequest(msgspec.Struct, kw_only=True):
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


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]


class DetokenizeResponse(msgspec.Struct):
    prompt: str
    content: str


async def tokenize(request: Request) -> Response:
    service: Service = request.app.state.service
    fields, raws = await read_json(request, TokenizeRequest)
    check_model(fields.model, service.frontend.card)
    if fields.messages is not None:
        check_messages(fields.messages)
    if fields.tools is not None:
        check_tools(fields.tools)
    taken_out(fields.messages or (), fields.tools)  # as a chat has them
    owner = Owner(request.state.visit.tenant.name, b"", leaves=False)
    found, canonical = await service.text_work(partial(_tokenize, service, fields, owner))
    unknown = [name for name in raws if name not in TokenizeRequest.__struct_fields__]
    return Json(found, headers=ignored_header(unknown) | canonical_header(canonical))


async def detokenize(request: Request) -> Response:
    service: Service = request.app.state.service
    fields, raws = await read_json(request, DetokenizeRequest)
    check_model(fields.model, service.frontend.card)
    if len(fields.tokens) > MOST_TOKENS:
        raise invalid("tokens", f"tokens must hold at most {MOST_TOKENS} ids")
    packed(fields.tokens, "tokens", service.frontend.card.vocab_size)
    tokenizer = service.frontend.tokenizer
    text = await service.text_work(
        partial(tokenizer.decode, fields.tokens, skip_special_tokens=False)
    )
    unknown = [name for name in raws if name not in DetokenizeRequest.__struct_fields__]
    return Json(DetokenizeResponse(text, text), headers=ignored_header(unknown))


def _tokenize(
    service: Service, fields: TokenizeRequest, owner: Owner
) -> tuple[TokenizeResponse, list[str]]:
    """The answer, and the canonical forms that changed the prompt."""
    tokenizer = service.frontend.tokenizer
    param, text, canonical = _text(service, fields, owner)
    if len(text) > LONGEST_TEXT:
        raise invalid(param, f"{param} must have at most {LONGEST_TEXT} characters")
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
    continued = bool(fields.continue_final_message)
    opened = fields.add_generation_prompt
    own = own_calls(service.memory, owner)
    messages, tools, canonical = service.canonical.applied(value, fields.tools or [], own)
    render = partial(
        service.frontend.tokenizer.render_chat,
        tools=tools,
        add_generation_prompt=not continued if opened is None else opened,
        continue_final_message=continued,
        template_kwargs=fields.chat_template_kwargs,
    )
    keeps = keeps_reasoning(service, fields.keep_reasoning)
    prompt = recalled(messages, render, service.memory, owner, keeps_reasoning=keeps)
    return param, prompt.text, canonical
