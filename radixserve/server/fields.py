"""What becomes of every field that a client can send: honoured, refused, or ignored and listed.

Honoured is what ``wire.ChatRequest`` and ``wire.CompletionRequest`` declare. Refused is what would
change the answer and is not built; a value that asks for nothing passes. Everything else, known or
not, changes nothing, and is listed in the response header ``x-radixserve-ignored``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers

from radixserve.server.errors import ApiError
from radixserve.server.limits import Raws

HEADER = "x-radixserve-ignored"
CANONICAL = "x-radixserve-canonical"
MAX_LISTED = 32
LONGEST_NAME = 64
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
NAME = re.compile(r"[A-Za-z0-9_.\-]+")

LONGEST_NEUTRAL = 64
"""Bytes beyond which no value can be a neutral one."""

REFUSED: dict[str, tuple[object, ...]] = {
    # what to say
    "functions": (),
    "function_call": ("none", "auto"),
    "guided_decoding_backend": (),
    "structural_tag": (),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "moderation": (),
    # from what
    "chat_template": (),
    "documents": ([],),
    "input_ids": (),
    "input_embeds": (),
    "prompt_embeds": (),
    "mm_processor_kwargs": ({},),
    "truncate_prompt_tokens": (),
    "lora_path": (),
    "lora_id": (),
    "suffix": ("",),
    # how to choose the tokens
    "stop_regex": ([], ""),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "custom_params": ({},),
    "repetition_detection": (),
    "thinking_token_budget": (),
    # what to show of it
    "echo": (False,),
    "logprob_token_ids": ([],),
    "return_tokens_as_token_ids": (False,),
    "return_prompt_text": (False,),
    "return_hidden_states": (False,),
    "spaces_between_special_tokens": (True,),
    "no_stop_trim": (False,),
}
"""Names with the values that ask for nothing, beside null."""

HINTS = {
    "functions": "Use tools.",
    "function_call": "Use tool_choice.",
    "suffix": "Put what follows into the prompt, in the model's own fill-in-the-middle format.",
    "chat_template": "Templates are programs; start the server with --chat-template FILE.",
    "output_format": "Use output_config.format.",
    "response_format": "Use output_config.format.",
    "stop": "Use stop_sequences.",
    "no_stop_trim": "Use include_stop_str_in_output.",
    "max_completion_tokens": "Use max_tokens.",
    "top_logprobs": "Use logprobs, a number.",
}

CHAT_REFUSED: dict[str, tuple[object, ...]] = REFUSED
TOOLS: dict[str, tuple[object, ...]] = {"tools": (), "tool_choice": ("none", "auto")}
COMPLETION_REFUSED: dict[str, tuple[object, ...]] = {
    **{name: neutral for name, neutral in REFUSED.items() if name != "echo"},
    "max_completion_tokens": (),
    "top_logprobs": (0,),
    **TOOLS,
    "include_reasoning": (True,),
}


def triage(
    raws: Raws,
    honoured: type[msgspec.Struct],
    refused: dict[str, tuple[object, ...]],
    hints: dict[str, str] = HINTS,
) -> list[str]:
    """The names of the fields that have no effect, in the order in which they were sent.

    Args:
        hints: what to do in place of sending a field that is refused.

    Raises:
        ApiError: 400, a field would change the answer in a way that is not built; it names it.
    """
    ignored = []
    for name, raw in raws.items():
        if name in honoured.__struct_fields__ or bytes(raw) == b"null":
            continue
        if name not in refused:
            ignored.append(name)
        elif not _neutral(raw, refused[name]):
            hint = hints.get(name)
            raise ApiError(
                status=400,
                message=f"{name} is not supported here." + (f" {hint}" if hint else ""),
                param=name,
                code="unsupported_parameter",
            )
    return ignored


def unknown_options(raws: Raws, type_: type[msgspec.Struct]) -> list[str]:
    """The fields of ``prompt_cache_options`` that have no effect, since ``type_`` lacks them."""
    raw = raws.get("prompt_cache_options")
    sent = None if raw is None else msgspec.json.decode(raw, type=Raws | None)
    names = [each for each in sent or () if each not in type_.__struct_fields__]
    return [f"prompt_cache_options.{each}" for each in names]


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """The header that lists ``names``; no header for none."""
    listed = sorted(set(names))
    if not listed:
        return {}
    shown = [_header_safe(name) for name in listed[:MAX_LISTED]]
    if len(listed) > MAX_LISTED:
        shown.append("...")
    return {HEADER: ", ".join(shown)}


def is_yes(headers: Headers, name: str) -> bool:
    """Whether the header ``name`` says yes; one that is not there says no.

    Raises:
        ApiError: 400, it says neither.
    """
    said = headers.get(name, "").strip().lower()
    if said and said not in (*YES, *NO):
        message = f"The header {name} must be one of {', '.join((*YES, *NO))}."
        raise ApiError(status=400, message=message, param=name, code="invalid_value")
    return said in YES


def canonical_header(forms: Sequence[str]) -> dict[str, str]:
    """The header that lists the canonical forms that changed a prompt; no header for none."""
    return {CANONICAL: ", ".join(forms)} if forms else {}


def _neutral(raw: msgspec.Raw, neutral: tuple[object, ...]) -> bool:
    return len(bytes(raw)) <= LONGEST_NEUTRAL and msgspec.json.decode(raw) in neutral


def _header_safe(name: str) -> str:
    short = name[:LONGEST_NAME]
    return short if NAME.fullmatch(short) else quote(short, safe="")[:LONGEST_NAME]
