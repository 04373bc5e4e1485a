"""What an answer shows of its prompt: logprobs as vLLM has them, and the echo of completions."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from radixserve.engine.frontend import TextDelta, TokenLogprob
from radixserve.server.answer import clipped
from radixserve.server.errors import wrong
from radixserve.server.wire import GenerationFields, PromptLogprob
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import unpack


def prompt_logprobs(fields: GenerationFields) -> int | None:
    """How many likeliest tokens are told of in the place of each of the prompt; None: no logprobs.

    Raises:
        ApiError: 400, they are asked for in a stream.
    """
    if fields.prompt_logprobs is not None and fields.stream:
        raise wrong("prompt_logprobs", "cannot be streamed: set stream to false")
    return fields.prompt_logprobs


def scored(token: TokenLogprob, rivals: int | None = None) -> msgspec.Raw:
    """One token of a prompt and its ``rivals`` likeliest rivals; see ``wire.PromptLogprobs``."""
    ranked = {
        str(other.id): PromptLogprob(clipped(other.logprob), rank, other.token)
        for rank, other in enumerate(token.top[:rivals], 1)
    }
    own = {str(token.id): PromptLogprob(clipped(token.logprob), token.rank or 0, token.token)}
    return msgspec.Raw(msgspec.json.encode(own | ranked))


class Entry(NamedTuple):
    """What ``CompletionLogprobs`` says of one token."""

    offset: int
    token: str
    logprob: float | None
    top: dict[str, float] | None


class Echo:
    """A prompt in front of the answers to it.

    Args:
        text: what is shown of it; empty for nothing.
        tokens: of the prompt, int32 big-endian.
        top: the logprobs of so many likeliest tokens stand beside those of the prompt's own; None
            for no logprobs.
    """

    def __init__(self, text: str, tokens: bytes, tokenizer: Tokenizer, top: int | None):
        self.text, self._top = text, top
        self._tokens, self._tokenizer = tokens, tokenizer
        self._detokenizer = tokenizer.detokenizer() if top is not None else None
        self._offset = 0

    def begin(self) -> list[Entry]:
        """The first token, which follows nothing."""
        if self._detokenizer is None:
            return []
        [first] = unpack(self._tokens[:4])
        return [Entry(self._next(first), self._tokenizer.token_text(first), None, None)]

    def take(self, delta: TextDelta) -> list[Entry]:
        """The tokens of the prompt whose logprobs have come with ``delta``."""
        if self._detokenizer is None:
            return []
        return [
            Entry(
                self._next(each.id), each.token, clipped(each.logprob), likeliest(each, self._top)
            )
            for each in delta.prompt_logprobs
        ]

    def _next(self, token: int) -> int:
        """Where the token begins in the text: special tokens may not stand in it."""
        assert self._detokenizer is not None
        offset = min(self._offset, len(self.text))
        self._offset += len(self._detokenizer.push(token))
        return offset


def likeliest(token: TokenLogprob, top: int | None = None) -> dict[str, float]:
    """By their texts the logprobs of the ``top`` likeliest tokens, and of the one that is there."""
    rivals = {other.token: clipped(other.logprob) for other in token.top[:top]}
    return rivals | {token.token: clipped(token.logprob)}
