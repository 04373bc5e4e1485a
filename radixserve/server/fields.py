"""What becomes of every field that a client can send: honoured, refused, or ignored and listed.

Honoured is what the ``Body`` of an endpoint declares. Refused is what would change the answer and
is not built; a value that asks for nothing passes. Everything else, known or not, changes nothing,
and is listed in the response header ``x-radixserve-ignored``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from types import UnionType
from typing import ClassVar, get_args, get_origin
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers

from radixserve.server.errors import invalid, wrong
from radixserve.server.limits import Raws, is_null

HEADER = "x-radixserve-ignored"
CANONICAL = "x-radixserve-canonical"
MAX_LISTED = 32
LONGEST_NAME = 64
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
NAME = re.compile(r"[A-Za-z0-9_.\-]+")

LONGEST_NEUTRAL = 64
"""Bytes beyond which no value can be a neutral one."""

Values = dict[str, tuple[object, ...]]
"""Names with the values that ask for nothing, beside null."""

REFUSED: Values = {
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

HINTS = {
    "functions": "Use tools",
    "function_call": "Use tool_choice",
    "suffix": "Put what follows into the prompt, in the model's own fill-in-the-middle format",
    "chat_template": "Templates are programs; start the server with --chat-template FILE",
    "output_format": "Use output_config.format",
    "response_format": "Use output_config.format",
    "stop": "Use stop_sequences",
    "no_stop_trim": "Use include_stop_str_in_output",
    "max_completion_tokens": "Use max_tokens",
    "top_logprobs": "Use logprobs, a number",
}


class Body(msgspec.Struct, kw_only=True):
    """A body of a request: the fields that are honoured, and what of the others is refused."""

    refused: ClassVar[Values] = {}
    hints: ClassVar[dict[str, str]] = HINTS
    """What to do in place of sending a field that is refused."""
    limit: ClassVar[int | None] = None
    """Bytes that it may have; None is as many as the server takes."""


def triage(raws: Raws, body: type[Body]) -> list[str]:
    """The paths of the fields that have no effect, in the order in which they were sent.

    Raises:
        ApiError: 400, a field would change the answer in a way that is not built; it names it.
    """
    unknown = _unknown(raws, body)
    for name in unknown:
        if name in body.refused and not _neutral(raws[name], body.refused[name]):
            hint = f". {body.hints[name]}" if name in body.hints else ""
            raise wrong(name, f"is not supported here{hint}", "unsupported_parameter")
    return [path for path in unknown if path not in body.refused]


def _unknown(raws: Raws, kind: type[msgspec.Struct], within: str = "") -> list[str]:
    """The paths of fields that ``kind``, or an object in one of its fields, does not have."""
    objects, paths = _objects(kind), []
    for name, raw in raws.items():
        if name in objects:
            inner = msgspec.json.decode(raw, type=Raws | None)
            paths += _unknown(inner or {}, objects[name], f"{within}{name}.")
        elif name not in kind.__struct_encode_fields__ and not is_null(raw):
            paths.append(within + name)
    return paths


@cache
def _objects(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """The fields of ``kind`` that hold objects in which there can be unknown fields."""
    found = {}
    for field in msgspec.structs.fields(kind):
        options = get_args(field.type) if get_origin(field.type) is UnionType else (field.type,)
        for each in options:
            if not (isinstance(each, type) and issubclass(each, msgspec.Struct)):
                continue
            if not each.__struct_config__.forbid_unknown_fields:
                found[field.encode_name] = each
    return found


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
        raise invalid(name, f"The header {name} must be one of {', '.join((*YES, *NO))}")
    return said in YES


def canonical_header(forms: Sequence[str]) -> dict[str, str]:
    """The header that lists the canonical forms that changed a prompt; no header for none."""
    return {CANONICAL: ", ".join(forms)} if forms else {}


def _neutral(raw: msgspec.Raw, neutral: tuple[object, ...]) -> bool:
    try:
        return len(raw) <= LONGEST_NEUTRAL and msgspec.json.decode(raw) in neutral
    except msgspec.DecodeError:  # such as a number beyond all bounds
        return False


def _header_safe(name: str) -> str:
    short = name[:LONGEST_NAME]
    return short if NAME.fullmatch(short) else quote(short, safe="")[:LONGEST_NAME]
