"""Parts of a text that are cut at seams have, one behind the other, the tokens of the whole."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from radixserve.text.seams import Seams, read_seams
from radixserve.text.vocabulary import byte_level_alphabet
from tests.text import tiny

ENDS = "<|im_end|>"


def merged() -> Tokenizer:
    """Byte-level BPE in which words, spaces and line ends merge across each other."""
    letters = sorted(byte_level_alphabet(), key=byte_level_alphabet().__getitem__)
    pairs = [("a", "b"), ("ab", "ab"), ("Ċ", "Ċ"), ("Ġ", "a"), ("Ġ", "Ġ"), ("<", "|"), ("|", ">")]
    names = [*tiny.SPECIALS, *letters, *("".join(pair) for pair in pairs)]
    backend = Tokenizer(models.BPE(vocab={name: id for id, name in enumerate(names)}, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s+(?!\S)|\s?[^\s]+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in tiny.SPECIALS])
    return backend


def composing() -> Tokenizer:
    backend = tiny.byte_level()
    backend.normalizer = normalizers.NFC()
    return backend


def prefixing() -> Tokenizer:
    backend = tiny.byte_level()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return backend


def first_word() -> Tokenizer:
    """Metaspace that marks the first word of a text alone."""
    backend = tiny.sentencepiece(strip=False)
    backend.normalizer = None  # type: ignore[assignment]
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return backend


def unigram() -> Tokenizer:
    names = ["<unk>", "<s>", "</s>", "▁", "▁the", "a", "b", "ab", "hell", "o", "<|", "|>", "."]
    backend = Tokenizer(models.Unigram([(name, -float(id)) for id, name in enumerate(names)], 0))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def crowded() -> Tokenizer:
    """Added tokens that cover each other, run into each other, and swallow white space."""
    backend = tiny.byte_level()
    backend.add_tokens(
        [
            AddedToken("<think>", normalized=False),
            AddedToken("<think>\n\n", normalized=False),
            AddedToken("ab|", normalized=False),
            AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("<pad>", rstrip=True, normalized=False),
            AddedToken("\n\n", normalized=False),
            AddedToken("hello", normalized=True),
            AddedToken("|><|", normalized=True),
        ]
    )
    return backend


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte level": tiny.byte_level,
    "byte level, merging": merged,
    "byte level, NFC": composing,
    "byte level, prefixing": prefixing,
    "byte level, crowded": crowded,
    "sentencepiece": tiny.sentencepiece,
    "sentencepiece, no prefix": lambda: tiny.sentencepiece(strip=False),
    "metaspace, first": first_word,
    "unigram": unigram,
    "wordpiece": tiny.wordpiece,
    "metaspace": tiny.metaspace,
}
PIECES = [
    *tiny.SPECIALS,
    *("<unk>", "<s>", "</s>", "[SEP]", "<think>", "<pad>", "<mask>"),
    *("hello", " the", "ab", "abab", " ", "\n", "\n\n", "<", "|>", "<|", "▁", "a\u0301", "\u0301"),
    *("é", "안", "\u1112\u1161", "\u11ab", "\uff1cs\uff1e", "\x00", "don't", "1 234", "."),
]


def ids(backend: Tokenizer, texts: list[str]) -> list[int]:
    encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
    return [token for encoding in encodings for token in encoding.ids]


def seams_of(backend: Tokenizer) -> Seams:
    return read_seams(backend, lambda _: True)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
@settings(max_examples=300)
@given(data=st.data())
def test_the_parts_have_the_tokens_of_the_whole(
    family: Callable[[], Tokenizer], data: st.DataObject
):
    backend = family()
    seams = seams_of(backend)
    assert seams.pattern is not None
    own = [token.content for token in backend.get_added_tokens_decoder().values()]
    pieces = st.sampled_from(PIECES) | st.sampled_from(own)
    text = "".join(data.draw(st.lists(pieces, max_size=14)))
    cuts = [0, *seams.starts(text), len(text)]
    assert ids(backend, [text[begin:end] for begin, end in pairwise(cuts)]) == ids(backend, [text])


def test_what_is_covered_or_swallows_is_no_seam():
    backend = crowded()
    backend.add_tokens([AddedToken("x<|im_s", normalized=False)])
    seams = seams_of(backend)
    for token in ("<|im_start|>", "<think>", "<mask>", "\n\n"):
        assert seams.starts(f"a{token}b") == []
    for token in ("<|im_end|>", "<pad>"):
        assert seams.starts(f"a{token}b") == [1]


def test_seams_are_where_the_specials_of_a_chat_are():
    text = f"<|im_start|>user\nhello{ENDS}\n<|im_start|>assistant\n"
    places = seams_of(tiny.byte_level()).starts(text)
    assert [text[place : place + 5] for place in places] == ["<|im_", "<|im_", "<|im_"]
    assert places[0] == 0
    wanted = read_seams(tiny.byte_level(), lambda token: token == ENDS).starts(text)
    assert wanted == [text.index(ENDS)]


def changed(change: Callable[[Tokenizer], object]) -> Tokenizer:
    backend = tiny.byte_level()
    change(backend)
    return backend


@pytest.mark.parametrize(
    "change",
    [
        lambda backend: backend.add_tokens([AddedToken("word", single_word=True)]),
        lambda backend: setattr(backend.model, "dropout", 0.1),
        lambda backend: setattr(backend, "encode_special_tokens", True),
        lambda backend: setattr(
            backend, "pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.FixedLength(3)])
        ),
    ],
    ids=["words", "dropout", "no specials", "unknown step"],
)
def test_where_nothing_can_be_proved_there_is_no_seam(change: Callable[[Tokenizer], object]):
    assert seams_of(changed(change)).starts(f"a{ENDS}b") == []
