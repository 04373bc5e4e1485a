"""Which tokens every chat begins with that goes on from given messages and tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from radixserve.common import common_length
from radixserve.errors import ContextLengthError, InvalidRequestError
from radixserve.tokens import TOKEN_BYTES, count

ROLES = ("user", "assistant")
TEXTS = ("a", "Z", "1", " x", "\n\n", "é", "{", "<")
"""Beginnings of what may follow: a tokenizer may join any of them with what stands before."""


def public_prefix(
    encode_chat: Callable[..., bytes],
    messages: list[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    page_size: int = 1,
    limit: int | None = None,
) -> bytes:
    """The tokens (int32 big-endian, floored to whole pages) that ``messages`` and ``tools`` have in
    common whatever follows them: rendered with different next messages, as far as all agree.

    The template is asked to go on with each of ``ROLES``; what it refuses does not count. It may be
    empty: some templates put the last message elsewhere than in the middle of a chat.

    Args:
        encode_chat: ``Tokenizer.encode_chat``, or what gives chats other tokens in its place.

    Raises:
        ContextLengthError: already the first chat that begins so has ``limit`` tokens.
        InvalidRequestError: the model has no chat template, or it refuses every way to go on.
    """
    common: bytes | None = None
    refusal: InvalidRequestError | None = None
    for role in ROLES:
        for text in TEXTS:
            try:
                tokens = encode_chat(
                    [*messages, {"role": role, "content": text}],
                    tools=tools,
                    add_generation_prompt=role == "user",
                    template_kwargs=template_kwargs,
                )
            except ContextLengthError:
                raise
            except InvalidRequestError as error:
                refusal = refusal or error
                break
            if limit is not None and count(tokens) >= limit:
                raise ContextLengthError(count(tokens), limit)
            common = tokens if common is None else common[: common_length(common, tokens)]
    if common is None:
        assert refusal is not None, "a template was asked"
        raise refusal
    return common[: len(common) - len(common) % (page_size * TOKEN_BYTES)]
