"""The sixteen-thousandth token of an answer costs what the first ones did."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from radixserve.engine.answer import Answer
from radixserve.engine.frontend import TextRequest
from radixserve.engine.messages import GenerationDelta, Usage
from radixserve.scheduling.plan import Sampled
from radixserve.scheduling.sampling import SamplingParams
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import pack
from tests.cache.cost import bytecodes
from tests.text import tiny

TOKENS = 16_000
STOPS = ("</answer>", "\ufffd\ufffd\ufffd!", "the end", "aaaaaaab")
USAGE = Usage(3, 1, 0)


def byte_token(tokenizer: Tokenizer, byte: int) -> int:
    [token] = [
        token
        for token in range(tokenizer.vocab_size)
        if tokenizer.token_bytes(token) == bytes([byte])
    ][:1]
    return token


def words(tokenizer: Tokenizer) -> list[int]:
    return [byte_token(tokenizer, byte) for byte in b"and so on, "]


def stray_bytes(tokenizer: Tokenizer) -> list[int]:
    """The beginning of a character of four bytes, for ever, and a stray byte."""
    return [byte_token(tokenizer, byte) for byte in b"\xf0\x9f\x98\x80\xf0\x9f\xff"]


def almost_a_stop(tokenizer: Tokenizer) -> list[int]:
    return [byte_token(tokenizer, ord("a"))]


@pytest.mark.parametrize("backend", [tiny.byte_level, tiny.sentencepiece])
@pytest.mark.parametrize("says", [words, stray_bytes, almost_a_stop])
def test_a_token_costs_the_same_however_long_the_answer_is(
    backend: Callable[[], tiny.Tokenizer], says: Callable[[Tokenizer], list[int]]
):
    tokenizer = Tokenizer(backend(), templates={}, eos_token_ids=[])
    said = says(tokenizer)
    request = TextRequest(
        id="r", prompt=pack([5, 6, 7]), sampling=SamplingParams(logprobs=1), stop=STOPS
    )
    answer = Answer(0, request, tokenizer)
    shown: list[int] = []

    def take(first: int, count: int) -> None:
        for index in range(first, first + count):
            token = said[index % len(said)]
            sampled = Sampled(token, logprob=-1.0, top=((token, -1.0),))
            news = answer.take(GenerationDelta(id="r/0", sampled=(sampled,), usage=USAGE))
            assert news.finish is None
            shown.append(len(news.text))

    window = 20 * len(said)
    early = bytecodes(lambda: take(0, window))
    take(window, TOKENS - 2 * window)
    late = bytecodes(lambda: take(TOKENS - window, window))
    assert len(shown) == TOKENS
    assert late < 1.1 * early
    # Nothing is held back for long, so that what is held is not scanned again and again.
    assert all(any(shown[at : at + 8]) for at in range(16, TOKENS - 8, 8))
