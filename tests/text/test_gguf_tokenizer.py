from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from tokenizers import Tokenizer as Backend

from radixserve.errors import ModelError
from radixserve.text import gguf_tokenizer
from radixserve.text.tokenizer import Tokenizer
from radixserve.text.vocabulary import byte_level_alphabet
from radixserve.tokens import unpack
from tests.text import tiny

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
MERGES = ["h e", "l l", "he ll", "Ġ 1", "1 2", "12 3", "Ġ t", "' S", "Ġt he"]
Fill = Callable[[gguf.GGUFWriter], None]


def write_gguf(path: Path, fill: Fill) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def load(path: Path, fill: Fill) -> Tokenizer:
    gguf_tokenizer.write_tokenizer(write_gguf(path / "model.gguf", fill), path / "tokenizer")
    return Tokenizer.load(path / "tokenizer")


def byte_level(pre: str | None, *, merges: list[str] = MERGES, **ids: int) -> Fill:
    """A byte-level vocabulary whose token 3 + b is the byte b, with a word out of merges' reach."""
    letters = sorted(byte_level_alphabet(), key=byte_level_alphabet().__getitem__)
    joined = [merge.replace(" ", "") for merge in merges]
    tokens = [*tiny.SPECIALS, *letters, *joined, "xyz", "<think>"]
    kinds = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 4) + [USER_DEFINED]

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        writer.add_token_merges(merges)
        writer.add_chat_template(tiny.CHATML)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(2)
        if "eot" in ids:
            writer.add_eot_token_id(ids["eot"])
        if "add_bos" in ids:
            writer.add_add_bos_token(bool(ids["add_bos"]))

    return fill


def sentencepiece(*, prefix: bool = True, add_bos: bool = True) -> Fill:
    """A SentencePiece vocabulary where "ab" is worth more than "bc"."""
    pieces = {"▁": -9.0, "a": -8.0, "b": -7.0, "c": -6.0, "ab": -1.0, "bc": -2.0, "▁ab": -3.0}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<t>"]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), USER_DEFINED]

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        writer.add_token_scores([*[0.0] * 259, *pieces.values(), 0.0])
        if not prefix:
            writer.add_add_space_prefix(False)
        if not add_bos:
            writer.add_add_bos_token(False)

    return fill


def texts(subject: Tokenizer, text: str) -> list[str]:
    return [subject.token_text(token) for token in unpack(subject.encode(text))]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", [" ", "1", "2", "3", "'", "S", "\n", "x", "y", "z"]),
        ("gpt-2", [" 1", "2", "3", "'", "S", "\n", "x", "y", "z"]),
        ("llama-bpe", ["<|endoftext|>", " ", "123", "'S", "\n", "xyz"]),
        ("qwen2", [" ", "1", "2", "3", "'S", "\n", "x", "y", "z"]),
    ],
)
def test_each_pre_tokenizer_cuts_text_in_its_own_way(
    tmp_path: Path, pre: str, expected: list[str]
) -> None:
    assert texts(load(tmp_path, byte_level(pre)), " 123'S\nxyz") == expected


def test_qwen2_composes_characters_and_smollm_leaves_them(tmp_path: Path) -> None:
    for pre, expected in (("qwen2", "é"), ("smollm", "e\u0301")):
        directory = tmp_path / pre
        directory.mkdir()
        subject = load(directory, byte_level(pre))
        assert subject.decode(unpack(subject.encode("e\u0301"))) == expected


def test_byte_level_files_carry_ids_specials_and_template(tmp_path: Path) -> None:
    subject = load(tmp_path, byte_level("smollm"))
    assert unpack(subject.encode("<|im_start|>hell<|im_end|>")) == [1, 261, 2]
    assert subject.eos_token_ids == (2,)
    assert subject.vocab_size == 3 + 256 + len(MERGES) + 2
    assert subject.encode_chat([{"role": "user", "content": "x"}]).startswith(bytes([0, 0, 0, 1]))
    text = "안녕하세요, wörld! 20 26\r\n\t<think> \U0001f600"
    assert subject.decode(unpack(subject.encode(text))) == text
    assert subject.token_text(subject.vocab_size - 1) == "<think>"
    assert texts(subject, "<think>") == ["<think>"]


def test_a_files_word_on_bos_beats_the_custom_of_its_family(tmp_path: Path) -> None:
    for pre, add_bos, expected in (("llama-bpe", 0, []), ("smollm", 1, [0])):
        directory = tmp_path / pre
        directory.mkdir()
        subject = load(directory, byte_level(pre, add_bos=add_bos))
        assert unpack(subject.encode("")) == expected


def test_an_end_of_turn_token_ends_answers_too(tmp_path: Path) -> None:
    assert load(tmp_path, byte_level("smollm", eot=0)).eos_token_ids == (2, 0)


def test_sentencepiece_joins_the_best_pair_first_and_falls_back_to_bytes(tmp_path: Path) -> None:
    subject = load(tmp_path, sentencepiece())
    assert texts(subject, "abc é") == ["<s>", " ab", "c", " ", "\ufffd", "\ufffd"]
    assert subject.eos_token_ids == (2,)
    for text in ("abc", " a  b", "안<t>", "a</s>"):
        tokens = unpack(subject.encode(text, add_special_tokens=False))
        assert subject.decode(tokens) == text.replace("</s>", "")


def test_sentencepiece_without_prefix_or_bos_adds_nothing(tmp_path: Path) -> None:
    subject = load(tmp_path, sentencepiece(prefix=False, add_bos=False))
    assert texts(subject, "abc") == ["ab", "c"]
    assert subject.decode(unpack(subject.encode(" ab"))) == " ab"


@pytest.mark.parametrize("pre", ["default", "some-new-model", None])
def test_a_pre_tokenizer_that_is_not_known_is_refused_by_name(
    tmp_path: Path, pre: str | None
) -> None:
    with pytest.raises(ModelError, match=repr(pre)):
        load(tmp_path, byte_level(pre))


def test_other_kinds_of_tokenizer_are_refused_by_name(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("rwkv")
        writer.add_token_list(["a"])

    with pytest.raises(ModelError, match="'rwkv'"):
        load(tmp_path, fill)
    with pytest.raises(ModelError, match="no tokenizer"):
        load(tmp_path, lambda writer: None)


def test_damaged_files_are_one_clear_line(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", byte_level("smollm")).read_bytes()
    damaged = tmp_path / "damaged.gguf"
    for size in (0, 3, 20, 100, 1000, len(whole) // 2):
        damaged.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"damaged\.gguf"):
            gguf_tokenizer.write_tokenizer(damaged, tmp_path / "tokenizer")
    with pytest.raises(ModelError, match=r"missing\.gguf"):
        gguf_tokenizer.write_tokenizer(tmp_path / "missing.gguf", tmp_path / "tokenizer")
    with pytest.raises(ModelError, match="damaged"):
        load(tmp_path, byte_level("smollm", merges=["q nowhere"]))


def test_a_vocabulary_and_its_kinds_or_scores_must_agree(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "<s>", "</s>"])
        writer.add_token_types([UNKNOWN, CONTROL])

    with pytest.raises(ModelError, match="damaged"):
        load(tmp_path, fill)


def test_the_split_expressions_are_whole(tmp_path: Path) -> None:
    for name, known in gguf_tokenizer.PRE_TOKENIZERS.items():
        directory = tmp_path / name
        directory.mkdir()
        subject = load(directory, byte_level(name, add_bos=0))
        text = "I'LL go 12345 km!!\r\n\r\n  über  [x]\n"
        assert subject.decode(unpack(subject.encode(text))) == text
        backend = Backend.from_file(str(directory / "tokenizer" / "tokenizer.json"))
        assert backend.pre_tokenizer is not None
        words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str("12345")]
        longest = {None: 5, gguf_tokenizer.LLAMA3_SPLIT: 3, gguf_tokenizer.QWEN2_SPLIT: 1}
        assert max(map(len, words)) == (1 if known.digits_apart else longest[known.split])
