from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend

from radixserve.text.detokenizer import LONGEST_CHARACTER, Detokenizer, WindowDetokenizer
from radixserve.text.tokenizer import Tokenizer
from tests.text import tiny

BYTE_TOKEN = re.compile(r"<0x(..)>")


def tokenizer(backend: Backend) -> Tokenizer:
    return Tokenizer(backend, templates={}, eos_token_ids=[])


def stream(detokenizer: Detokenizer, tokens: Sequence[int]) -> str:
    return "".join(map(detokenizer.push, tokens)) + detokenizer.finish()


def all_ids(backend: Backend) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, backend.get_vocab_size() - 1), max_size=60)


def sentencepiece_oracle(names: Sequence[str]) -> str:
    """SentencePiece's own reading of byte tokens: characters stand, each other byte is U+FFFD."""
    text, run = "", b""
    for name in [*names, ""]:
        if byte := BYTE_TOKEN.fullmatch(name):
            run += bytes.fromhex(byte[1])
            continue
        while run:
            for length in range(1, LONGEST_CHARACTER + 1):
                try:
                    text += run[:length].decode()
                except UnicodeDecodeError:
                    continue
                run = run[length:]
                break
            else:
                text, run = text + "\ufffd", run[1:]
        text += name.replace("▁", " ")
    return text


BYTE_LEVEL, SENTENCEPIECE, GEMMA = (
    tiny.byte_level(),
    tiny.sentencepiece(),
    tiny.sentencepiece(strip=False),
)


@given(tokens=all_ids(BYTE_LEVEL), skip=st.booleans())
def test_byte_level_streams_what_the_library_decodes_at_once(tokens: list[int], skip: bool) -> None:
    detokenizer = tokenizer(BYTE_LEVEL).detokenizer(skip_special_tokens=skip)
    assert stream(detokenizer, tokens) == BYTE_LEVEL.decode(tokens, skip_special_tokens=skip)


@given(bytes_=st.binary(max_size=40))
def test_byte_level_reads_any_bytes_as_the_library_does(bytes_: bytes) -> None:
    tokens = [byte + len(tiny.SPECIALS) for byte in bytes_]
    text = stream(tokenizer(BYTE_LEVEL).detokenizer(), tokens)
    assert text == BYTE_LEVEL.decode(tokens) == bytes_.decode("utf-8", "replace")


@pytest.mark.parametrize("backend", [SENTENCEPIECE, GEMMA])
@given(text=st.text(max_size=30))
def test_sentencepiece_streams_what_the_library_decodes_at_once(
    backend: Backend, text: str
) -> None:
    tokens = backend.encode(text).ids
    assert stream(tokenizer(backend).detokenizer(), tokens) == backend.decode(tokens)


@given(tokens=all_ids(SENTENCEPIECE))
def test_sentencepiece_keeps_whole_characters_among_stray_bytes(tokens: list[int]) -> None:
    names = [SENTENCEPIECE.id_to_token(token) for token in tokens]
    expected = sentencepiece_oracle(names).removeprefix(" ")
    detokenizer = tokenizer(SENTENCEPIECE).detokenizer(skip_special_tokens=False)
    assert stream(detokenizer, tokens) == expected


@pytest.mark.parametrize("backend", [tiny.wordpiece(), tiny.metaspace()])
@given(data=st.data(), skip=st.booleans())
def test_other_decoders_stream_what_the_library_decodes_at_once(
    backend: Backend, data: st.DataObject, skip: bool
) -> None:
    tokens = data.draw(all_ids(backend))
    detokenizer = tokenizer(backend).detokenizer(skip_special_tokens=skip)
    assert stream(detokenizer, tokens) == backend.decode(tokens, skip_special_tokens=skip)


@pytest.mark.parametrize("backend", [BYTE_LEVEL, SENTENCEPIECE, tiny.wordpiece()])
@given(data=st.data(), skip=st.booleans())
def test_a_stream_and_a_whole_answer_have_the_same_text(
    backend: Backend, data: st.DataObject, skip: bool
) -> None:
    tokens = data.draw(st.lists(st.integers(-3, backend.get_vocab_size() + 3), max_size=40))
    subject = tokenizer(backend)
    streamed = stream(subject.detokenizer(skip_special_tokens=skip), tokens)
    assert streamed == subject.decode(tokens, skip_special_tokens=skip)


@pytest.mark.parametrize("backend", [BYTE_LEVEL, SENTENCEPIECE])
@given(text=st.text(min_size=1, max_size=20))
def test_no_piece_holds_half_a_character(backend: Backend, text: str) -> None:
    whole = text.replace("\ufffd", "")
    detokenizer = tokenizer(backend).detokenizer(continuation=True)
    pieces = [detokenizer.push(token) for token in backend.encode(whole).ids]
    assert not any("\ufffd" in piece for piece in pieces)
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("stray", [b"\x80", b"\xe4", b"\xf0\x9f\x98", b"\xc0", b"\xff"])
def test_endless_stray_bytes_come_out_as_they_come_in(stray: bytes) -> None:
    detokenizer = tokenizer(BYTE_LEVEL).detokenizer()
    first = len(tiny.SPECIALS)
    shown = 0
    for step in range(1, 16_001):
        byte = stray[step % len(stray)]
        shown += len(detokenizer.push(first + byte))
        assert shown * len(stray) >= step - 2 * LONGEST_CHARACTER
    assert len(detokenizer.finish()) <= 1


@pytest.mark.parametrize("name", ["<0x80>", "<0xE4>", "<0xFF>", "▁", "é"])
def test_the_window_never_grows(name: str) -> None:
    decoded: list[int] = []

    class Counting:
        def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
            decoded.append(len(tokens))
            return SENTENCEPIECE.decode(tokens, skip_special_tokens=skip_special_tokens)

    detokenizer = WindowDetokenizer(Counting(), 300, frozenset())  # type: ignore[arg-type]
    token = SENTENCEPIECE.token_to_id(name)
    shown = [detokenizer.push(token) for _ in range(16_000)]
    assert max(decoded) <= 2 * LONGEST_CHARACTER
    assert len(decoded) <= 3 * len(shown)
    assert all(any(shown[at : at + LONGEST_CHARACTER]) for at in range(0, 16_000, 4))


@given(text=st.text(max_size=20))
def test_the_window_completes_characters_of_byte_tokens(text: str) -> None:
    tokens = [SENTENCEPIECE.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()]
    detokenizer = WindowDetokenizer(GEMMA, GEMMA.get_vocab_size(), frozenset())
    pieces = [detokenizer.push(token) for token in tokens]
    assert "".join(pieces) == text


def test_the_window_shows_each_stray_byte_once() -> None:
    detokenizer = WindowDetokenizer(GEMMA, GEMMA.get_vocab_size(), frozenset())
    tokens = [GEMMA.token_to_id(f"<0x{byte:02X}>") for byte in "é".encode() + b"\xff" * 8]
    assert "".join(map(detokenizer.push, tokens)) == "é" + "\ufffd" * 8


def test_a_decoder_with_a_step_of_its_own_still_streams_its_text() -> None:
    backend = tiny.sentencepiece()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip("_", 1, 0)])
    tokens = [backend.token_to_id(name) for name in ("▁the", "é", "▁")]
    assert stream(tokenizer(backend).detokenizer(), tokens) == " theé "


def test_special_tokens_outside_the_byte_alphabet_are_shown_as_they_are_spelled() -> None:
    backend = tiny.byte_level(specials=("<｜end｜>",))
    shown = stream(tokenizer(backend).detokenizer(skip_special_tokens=False), [0])
    assert shown == "<｜end｜>" == backend.decode([0], skip_special_tokens=False)


def test_an_answer_that_continues_half_a_character_shows_nothing_of_the_prompt() -> None:
    subject = tokenizer(BYTE_LEVEL)
    euro = "€".encode()
    detokenizer = subject.detokenizer()
    assert detokenizer.push(len(tiny.SPECIALS) + euro[2]) == "\ufffd"


def test_the_space_that_begins_a_text_is_dropped_unless_the_text_continues_another() -> None:
    subject = tokenizer(SENTENCEPIECE)
    the, space = SENTENCEPIECE.token_to_id("▁the"), SENTENCEPIECE.token_to_id("▁")
    assert stream(subject.detokenizer(), [the, the]) == "the the"
    assert stream(subject.detokenizer(continuation=True), [the, the]) == " the the"
    assert stream(subject.detokenizer(), [space, the]) == " the"
    assert stream(tokenizer(GEMMA).detokenizer(), [the]) == " the"


@pytest.mark.parametrize(
    ("make", "special"),
    [(tiny.byte_level, "<|im_end|>"), (tiny.sentencepiece, "</s>"), (tiny.wordpiece, "[SEP]")],
)
def test_special_tokens_are_hidden_and_other_added_tokens_shown(
    make: Callable[[], Backend], special: str
) -> None:
    backend = make()
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    subject = tokenizer(backend)
    tokens = [backend.token_to_id("<think>"), backend.token_to_id(special)]
    assert stream(subject.detokenizer(), tokens) == "<think>"
    shown = stream(subject.detokenizer(skip_special_tokens=False), tokens)
    assert shown.replace(" ", "") == f"<think>{special}"


def test_ids_that_the_tokenizer_does_not_have_are_no_text() -> None:
    for backend in (BYTE_LEVEL, SENTENCEPIECE, tiny.wordpiece()):
        detokenizer = tokenizer(backend).detokenizer()
        assert [detokenizer.push(token) for token in (backend.get_vocab_size(), 10**9)] == ["", ""]


def test_special_tokens_that_somebody_has_to_see_are_not_skipped() -> None:
    subject = tokenizer(tiny.byte_level(specials=("<|im_end|>", "<|channel|>", "<|message|>")))
    markers = ("<|channel|>final<|message|>",)
    assert stream(subject.detokenizer(markers=markers), [0, 1, 2]) == "<|channel|><|message|>"
    assert stream(subject.detokenizer(), [0, 1, 2]) == ""
    assert stream(tokenizer(tiny.wordpiece()).detokenizer(markers=("[SEP]",)), [0, 1]) == "[SEP]"
