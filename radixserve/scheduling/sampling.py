"""How the next token of one request is chosen."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal

import msgspec

from radixserve.errors import InvalidRequestError
from radixserve.scheduling.grammar import Grammar
from radixserve.tokens import TOKEN_BYTES, count, unpack

Pooling = Literal["last", "mean"]
MAX_LOGPROBS = 20
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_BAD_TOKENS = 1024
"""Of all bad words together."""
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 1024


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling settings of one request; the names and meanings are those of vLLM and OpenAI.

    Penalties look at prompt and output alike (``repetition_penalty``) or at the output only
    (``presence_penalty``, ``frequency_penalty``, as OpenAI defines them).

    Raises:
        InvalidRequestError: a value is out of its range; ``param`` names the field.
    """

    max_tokens: int | None = None
    """Tokens to generate at most; None means as many as fit, 0 that the prompt is all there is to
    compute."""
    min_tokens: int = 0
    """No stop token is chosen before this many tokens were generated."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1 is off."""
    min_p: float = 0.0
    seed: int | None = None
    """Same seed, same prompt, same settings: same tokens, whatever else is in the batch."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    """No others are chosen, not even to end the answer."""
    bad_words: tuple[bytes, ...] = ()
    """Sequences of tokens (int32 big-endian) whose last is not chosen behind the others, unless
    nothing else is left."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: no logprobs; k: that of the chosen token and of the k likeliest ones."""
    pooling: Pooling | None = None
    """What is wanted in place of tokens: the hidden state of the prompt's last token, or the mean
    of all of them, for which all are computed. Such a request ends after one token, which is no
    choice of the model's."""
    prompt_logprobs: int | None = None
    """None: none; k: the logprobs of the prompt's own tokens and of the k likeliest in the place of
    each, once for all answers to it. Only positions that are computed have logits, so that what is
    cached is not reused for them."""
    prompt_logprobs_start: int = 1
    """The first token that has them. There are none of the token at 0, which follows nothing."""
    grammar: Grammar | None = None
    """What the whole answer has to look like; it ends where nothing may follow."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _within("max_tokens", self.max_tokens, 0, 2**31 - 1)
        _within("min_tokens", self.min_tokens, 0, 2**31 - 1)
        _within("temperature", self.temperature, 0.0, 2.0)
        _within("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidRequestError("top_p must be greater than 0.", param="top_p")
        _within("top_k", self.top_k, -1, 2**31 - 1)
        _within("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _within("seed", self.seed, -(2**63), 2**63 - 1)
        _within("repetition_penalty", self.repetition_penalty, 0.01, 10.0)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.logprobs is not None:
            _within("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _within("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        _within("prompt_logprobs_start", self.prompt_logprobs_start, 1, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens ({self.min_tokens}) is greater than max_tokens ({self.max_tokens}).",
                param="min_tokens",
            )
        self._check_token_ids()

    def _check_token_ids(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequestError(
                f"logit_bias has {len(self.logit_bias)} entries; "
                f"at most {MAX_LOGIT_BIAS} are taken.",
                param="logit_bias",
            )
        for token, bias in self.logit_bias.items():
            _within(f"logit_bias.{token}", bias, -100.0, 100.0)
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequestError(
                f"stop_token_ids has {len(self.stop_token_ids)} entries; "
                f"at most {MAX_STOP_TOKEN_IDS} are taken.",
                param="stop_token_ids",
            )
        self._check_choice()

    def _check_choice(self) -> None:
        allowed = self.allowed_token_ids
        if allowed is not None and not 1 <= len(allowed) <= MAX_ALLOWED_TOKEN_IDS:
            raise InvalidRequestError(
                f"allowed_token_ids must have 1 to {MAX_ALLOWED_TOKEN_IDS} entries, not "
                f"{len(allowed)}.",
                param="allowed_token_ids",
            )
        if allowed is not None and self.grammar is not None:
            raise InvalidRequestError(
                "allowed_token_ids cannot be combined with a form of the answer, which says itself "
                "what may be chosen.",
                param="allowed_token_ids",
            )
        bad = sum(map(count, self.bad_words))
        if bad > MAX_BAD_TOKENS:
            raise InvalidRequestError(
                f"bad_words have {bad} tokens together; at most {MAX_BAD_TOKENS} are taken.",
                param="bad_words",
            )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids that the model does not have.

        Raises:
            InvalidRequestError: an id lies outside ``0 .. vocab_size - 1``.
        """
        for token in self.logit_bias:
            _within(f"logit_bias.{token}", token, 0, vocab_size - 1)
        for position, token in enumerate(self.stop_token_ids):
            _within(f"stop_token_ids.{position}", token, 0, vocab_size - 1)
        for position, token in enumerate(self.allowed_token_ids or ()):
            _within(f"allowed_token_ids.{position}", token, 0, vocab_size - 1)
        for position, word in enumerate(self.bad_words):
            for token in unpack(word):
                _within(f"bad_words.{position}", token, 0, vocab_size - 1)

    def check_ends(self, eos_token_ids: Collection[int], vocab_size: int) -> None:
        """Refuse answers that have to go on although every token that may be chosen ends them.

        Raises:
            InvalidRequestError: so it is before ``min_tokens``.
        """
        if not self.min_tokens:
            return
        stops, allowed = self.stops(eos_token_ids), self.allowed_token_ids
        none_left = len(stops) >= vocab_size if allowed is None else stops.issuperset(allowed)
        if none_left:
            param = "stop_token_ids" if allowed is None else "allowed_token_ids"
            raise InvalidRequestError(
                f"Every token that may be chosen ends the answer, which min_tokens "
                f"({self.min_tokens}) forbids: change {param} or leave min_tokens out.",
                param=param,
            )

    def stops(self, eos_token_ids: Collection[int]) -> frozenset[int]:
        """The tokens that end the answer, and may not be chosen before ``min_tokens``. O(stops)."""
        own = frozenset(self.stop_token_ids)
        return own if self.ignore_eos else own.union(eos_token_ids)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Whether the tokens so far change the logits of the next."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def restricted(self) -> bool:
        """Whether there are tokens that may not be chosen."""
        return self.allowed_token_ids is not None or bool(self.bad_words)

    def bad_tokens(self, history: bytes | bytearray, generated: int) -> list[int]:
        """The tokens that would complete a bad word behind ``history`` (int32 big-endian), of which
        the last ``generated`` are output. O(tokens of bad words)."""
        output = generated * TOKEN_BYTES
        found = []
        for word in self.bad_words:
            begun = word[:-TOKEN_BYTES]
            if len(begun) <= output and history.endswith(begun):
                found += unpack(word[-TOKEN_BYTES:])
        return found


def _within(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequestError(f"{name} must be a finite number, not {value}.", param=name)
    if not low <= value <= high:
        raise InvalidRequestError(
            f"{name} must be between {low} and {high}, not {value}.", param=name
        )
