"""Prompts of conversations are tokenized once, and answers keep the tokens that were generated."""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import pytest

from radixserve.errors import InvalidRequestError
from radixserve.server.text_memory import OVERHEAD, Owner, Place, TextMemory
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import pack, unpack
from tests.text import tiny

ME = Owner("me", b"")
BYTE = 3
"""The token of byte 0; those of the other bytes follow."""


class Counting(Tokenizer):
    """Says which texts it was given."""

    def encode_each(
        self, texts: list[str], *, add_special_tokens: bool = True, param: str = "prompt"
    ) -> list[bytes]:
        if not hasattr(self, "given"):
            self.given: list[str] = []
        self.given += texts
        return super().encode_each(texts, add_special_tokens=add_special_tokens, param=param)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Counting:
    loaded = Counting.load(tiny.tiny_tokenizer_dir(tmp_path))
    assert isinstance(loaded, Counting)
    loaded.given = []
    return loaded


@pytest.fixture
def memory(tokenizer: Counting) -> TextMemory:
    return TextMemory(lambda: tokenizer)


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def asked(memory: TextMemory, text: str, owner: Owner = ME) -> tuple[bytes, Place]:
    encoded = memory.encode(text, owner, param="messages")
    assert encoded.place is not None
    return encoded.tokens, encoded.place


def letters(text: str) -> list[int]:
    """Each byte as a token of its own, whatever would merge."""
    return [BYTE + byte for byte in text.encode()]


QUESTION = turn("user", "hello") + "<|im_start|>assistant\n"


def test_only_what_is_new_is_tokenized(memory: TextMemory, tokenizer: Counting):
    text = ""
    for index in range(20):
        text += turn("user", f"the question {index}")
        tokenizer.given.clear()
        tokens, _ = asked(memory, text + "<|im_start|>assistant\n")
        assert sum(map(len, tokenizer.given)) < 120
        assert tokens == tokenizer.encode(text + "<|im_start|>assistant\n")
        text += turn("assistant", f"the answer {index}")


def test_the_tokens_are_always_those_of_the_whole_text(memory: TextMemory, tokenizer: Counting):
    rng = random.Random(3)
    pieces = ["hello", " the", "é", "<|im_start|>", "<|im_end|>", "\n", "<|endoftext|>", "h", "e"]
    for _ in range(500):
        text = "".join(rng.choices(pieces, k=rng.randrange(1, 30)))
        tokens = memory.encode(text, ME, param="messages").tokens
        assert tokens == tokenizer.encode(text, add_special_tokens=False)


def test_an_answer_comes_back_with_the_tokens_that_were_generated(
    memory: TextMemory, tokenizer: Counting
):
    prompt, place = asked(memory, QUESTION)
    memory.remember(place, letters("hello the"), end=2)
    history = QUESTION + "hello the<|im_end|>\n" + QUESTION
    tokens, _ = asked(memory, history)
    assert tokens.startswith(prompt + pack([*letters("hello the"), 2]))
    assert tokens != tokenizer.encode(history)
    assert tokenizer.decode(unpack(tokens), skip_special_tokens=False) == history


def test_a_long_conversation_extends_token_by_token(memory: TextMemory):
    rng = random.Random(7)
    text, before = QUESTION, b""
    for _ in range(30):
        prompt, place = asked(memory, text)
        assert prompt.startswith(before)
        said = "".join(rng.choices(["hello", " the", "é", "\n", "x"], k=rng.randrange(1, 9)))
        memory.remember(place, letters(said), end=2)
        before = prompt + pack([*letters(said), 2])
        text += said + "<|im_end|>\n" + QUESTION


def test_the_beginning_of_an_answer_that_was_cut_can_be_gone_on_from(memory: TextMemory):
    prompt, place = asked(memory, QUESTION)
    memory.remember(place, letters("hello"))
    tokens, _ = asked(memory, QUESTION + "hello")
    assert tokens == prompt + pack(letters("hello"))
    assert asked(memory, QUESTION + "hello the")[0] != prompt + pack(letters("hello the"))


@pytest.mark.parametrize(
    ("generated", "text"),
    [
        (letters("hello"), "hello."),
        (letters("hello"), "hell"),
        (letters("<|im_end|>hello"), "<|im_end|>hello"),
        (letters("é")[:1], "\ufffd"),
        ([10**6], ""),
        ([], ""),
    ],
    ids=["longer", "shorter", "a special spelt out", "half a character", "no token", "nothing"],
)
def test_any_other_text_has_its_own_tokens(
    memory: TextMemory, tokenizer: Counting, generated: list[int], text: str
):
    _, place = asked(memory, QUESTION)
    memory.remember(place, generated, end=2)
    history = QUESTION + text + "<|im_end|>\n" + QUESTION
    assert asked(memory, history)[0] == tokenizer.encode(history)


@pytest.mark.parametrize(
    "owner", [Owner("you", b""), Owner("me", b"salt")], ids=["tenant", "namespace"]
)
def test_nobody_finds_what_is_anothers(memory: TextMemory, tokenizer: Counting, owner: Owner):
    _, place = asked(memory, QUESTION)
    memory.remember(place, letters("hello"), end=2, identity=b"hello")
    tokenizer.given.clear()
    history = QUESTION + "hello<|im_end|>\n" + QUESTION
    assert asked(memory, history, owner)[0] == tokenizer.encode(history)
    assert "".join(tokenizer.given).count("<|im_start|>user\nhello") >= 1
    assert memory.answers(owner, b"hello") == ()
    assert len(memory.answers(ME, b"hello")) == 1


def test_in_another_conversation_the_same_text_has_its_own_tokens(
    memory: TextMemory, tokenizer: Counting
):
    _, place = asked(memory, QUESTION)
    memory.remember(place, letters("hello"), end=2)
    other = turn("system", "the") + QUESTION + "hello<|im_end|>\n" + QUESTION
    assert asked(memory, other)[0] == tokenizer.encode(other)


def test_whoever_leaves_nothing_is_not_remembered(memory: TextMemory):
    _, place = asked(memory, QUESTION, ME._replace(leaves=False))
    memory.remember(place, letters("hello"), end=2)
    assert memory.size == 0


def test_what_is_forgotten_is_gone(memory: TextMemory, tokenizer: Counting):
    for tenant, namespace in (("me", b""), ("me", b"salt"), ("you", b"")):
        _, place = asked(memory, QUESTION, Owner(tenant, namespace))
        memory.remember(place, letters("hello"), end=2)
    history = QUESTION + "hello<|im_end|>\n"
    plain = tokenizer.encode(history)

    def spliced(tenant: str, namespace: bytes) -> bool:
        return asked(memory, history, Owner(tenant, namespace, leaves=False))[0] != plain

    memory.forget("me", b"salt")
    assert (spliced("me", b""), spliced("me", b"salt"), spliced("you", b"")) == (True, False, True)
    memory.forget("me")
    assert (spliced("me", b""), spliced("you", b"")) == (False, True)
    memory.clear()
    assert memory.size == 0


def test_memory_is_bounded(tokenizer: Counting):
    memory = TextMemory(lambda: tokenizer, most_bytes=40 * OVERHEAD)
    for index in range(300):
        _, place = asked(memory, turn("user", f"question {index}") + "<|im_start|>assistant\n")
        for answer in ("hello", "hello the"):
            memory.remember(place, letters(answer), end=2, identity=answer.encode())
        assert memory.size <= 40 * OVERHEAD
    for _ in range(300):
        memory.remember(place, letters("hello" * 100), end=2)
        assert memory.size <= 40 * OVERHEAD


def test_the_last_of_many_answers_to_one_prompt_are_known(memory: TextMemory):
    prompt, place = asked(memory, QUESTION)
    for index in range(20):
        memory.remember(place, letters(f"hello {index}"), end=2)
    for index, known in ((19, True), (12, True), (0, False)):
        tokens, _ = asked(memory, f"{QUESTION}hello {index}<|im_end|>\n")
        assert tokens.startswith(prompt + pack(letters("hello"))) == known


def test_half_a_surrogate_pair_is_refused_by_name(memory: TextMemory):
    with pytest.raises(InvalidRequestError) as caught:
        memory.encode(QUESTION + "\ud83d", ME, param="messages")
    assert caught.value.param == "messages"
    assert asked(memory, QUESTION)[0]


def test_a_text_without_seams_is_tokenized_as_ever(memory: TextMemory, tokenizer: Counting):
    encoded = memory.encode("hello the", ME, param="messages")
    assert (encoded.tokens, encoded.place) == (tokenizer.encode("hello the"), None)


def test_places_are_counted_in_the_tokens_that_there_are(memory: TextMemory, tokenizer: Counting):
    rng = random.Random(11)
    for _ in range(40):
        text = "".join(rng.choices(["hello", " the", "é", "\n"], k=rng.randrange(6)))
        text = turn("system", text) + QUESTION
        for _ in range(rng.randrange(4)):
            _, place = asked(memory, text)
            said = "".join(rng.choices(["hello", " the", "é", "\n", "x"], k=rng.randrange(1, 9)))
            memory.remember(place, letters(said), end=2)
            text += said + rng.choice(["", "<|im_end|>\n" + QUESTION])
        encoded = memory.encode(text, ME, param="messages")
        tokens = unpack(encoded.tokens)
        pieces = [(tokenizer.spelling([each]) or "?").encode() for each in tokens]
        stops = list(accumulate(map(len, pieces)))
        ends = rng.sample(range(len(text) + 1), min(20, len(text)))
        for end, found in zip(ends, encoded.places(ends, tokenizer), strict=True):
            assert found == bisect_right(stops, len(text[:end].encode())), (text, end)
