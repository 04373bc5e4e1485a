"""What each token id stands for: its exact bytes, and whether it is special."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tokenizers

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "▁"
UNBOUNDED = 2**31 - 1


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("radixserve.replace_each_byte", _replace_each_byte)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of every token of a tokenizer whose text is the joined bytes of its tokens.

    That holds for byte-level BPE (Radford et al., 2019) and for SentencePiece with byte fallback
    (Kudo and Richardson, 2018), which is to say for nearly every causal language model.
    """

    pieces: Sequence[bytes]
    """By token id; empty where the tokenizer has no such token."""
    special: frozenset[int]
    errors: str
    """How bytes that are not UTF-8 are read: one U+FFFD for each faulty sequence (byte-level), or
    for each byte of it (SentencePiece)."""
    strip_first_space: bool
    """Whether a space that begins the text is an artefact of the tokenizer."""


def read_vocabulary(backend: tokenizers.Tokenizer) -> Vocabulary | None:
    """The vocabulary of ``backend``, or None if its text is not the joined bytes of its tokens."""
    steps = steps_of(backend.decoder, "decoders")
    kinds = [step["type"] for step in steps]
    size = vocabulary_size(backend)
    to_bytes: Callable[[str], bytes]
    if kinds in (["ByteLevel"], ["ByteLevel", "Fuse"]):
        to_bytes, errors, strip = byte_level_piece, "replace", False
    elif kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _is_space_mark(steps[0]):
        strip = kinds[3:] == ["Strip"] and _strips_one_space(steps[3])
        if kinds[3:] and not strip:
            return None
        to_bytes, errors = sentencepiece_piece, "radixserve.replace_each_byte"
    else:
        return None
    names = (backend.id_to_token(token) for token in range(size))
    return Vocabulary(
        pieces=tuple(b"" if name is None else to_bytes(name) for name in names),
        special=special_ids(backend),
        errors=errors,
        strip_first_space=strip,
    )


def vocabulary_size(backend: tokenizers.Tokenizer) -> int:
    """One more than the highest token id."""
    return max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def special_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Ids of the tokens that ``skip_special_tokens`` leaves out of the text."""
    added = backend.get_added_tokens_decoder()
    return frozenset(token for token, content in added.items() if content.special)


def byte_level_piece(name: str) -> bytes:
    """The bytes that a byte-level vocabulary spells as ``name``, one character a byte."""
    spelling = byte_level_alphabet()
    try:
        return bytes([spelling[character] for character in name])
    except KeyError:
        return name.encode("utf-8", "replace")


def sentencepiece_piece(name: str) -> bytes:
    """The bytes of a SentencePiece token: ``▁`` is a space, ``<0xE4>`` a byte."""
    if byte := BYTE_TOKEN.fullmatch(name):
        return bytes([int(byte[1], 16)])
    return name.replace(SPACE_MARK, " ").encode("utf-8", "replace")


@lru_cache(maxsize=1)
def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: those that print stand for themselves, the rest follow U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


@dataclass(frozen=True, slots=True)
class TokenBound:
    """How few tokens a text can come to, told without tokenizing it."""

    longest: int
    """UTF-8 bytes of text that one token can stand for at most; UNBOUNDED where nobody can say."""
    dropped: bytes = b""
    """Bytes that the vocabulary has no token for, and that the tokenizer leaves out."""

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the tokens of ``text``. O(len(text)), at the speed of a copy."""
        counted = text.encode("utf-8", "replace").translate(None, self.dropped)
        return -(-len(counted) // self.longest)


def read_bound(backend: tokenizers.Tokenizer) -> TokenBound:
    """The bound of ``backend``.

    There is none for a tokenizer that folds text: unknown tokens, most normalizers,
    pre-tokenizers that remove what they split at, added tokens that swallow white space.
    """
    vocabulary = backend.get_vocab(with_added_tokens=True)
    normalizers = steps_of(backend.normalizer, "normalizers")
    splits = steps_of(backend.pre_tokenizer, "pretokenizers")
    added = backend.get_added_tokens_decoder().values()
    composes = any(step["type"] == "NFC" for step in normalizers)
    byte_level = any(step["type"] == "ByteLevel" for step in splits)
    if byte_level:
        alphabet = byte_level_alphabet()
        dropped = bytes(byte for name, byte in alphabet.items() if name not in vocabulary)
        foldable = composes and bool(dropped)
    else:
        dropped = b""
        foldable = not {f"<0x{byte:02X}>" for byte in range(0x100)} <= vocabulary.keys()
    if (
        foldable
        or any(token.lstrip or token.rstrip for token in added)
        or any(_removes(step) for step in splits)
        or any(_shortens(step) for step in normalizers)
    ):
        return TokenBound(UNBOUNDED)
    names = [len(token.content.encode("utf-8", "replace")) for token in added]
    longest = max(len(name if byte_level else name.encode("utf-8")) for name in vocabulary)
    # Nine bytes of Hangul jamo become a syllable of three; NFC shortens nothing by more.
    return TokenBound(max([longest, *names]) * (3 if composes else 1), dropped)


def steps_of(component: Any, plural: str) -> list[dict[str, Any]]:
    """The settings of a tokenizers component, a sequence laid flat."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    if state["type"] != "Sequence":
        return [state]
    return list(state[plural])


def _removes(step: dict[str, Any]) -> bool:
    kept = step["type"] in {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"}
    return not kept or step.get("behavior") == "Removed"


def _shortens(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        pattern = step["pattern"].get("String")
        return pattern is None or len(step["content"].encode()) < len(pattern.encode())
    return step["type"] not in {"NFC", "Prepend"}


def _is_space_mark(step: dict[str, Any]) -> bool:
    return (step["pattern"], step["content"]) == ({"String": SPACE_MARK}, " ")


def _strips_one_space(step: dict[str, Any]) -> bool:
    return (step["content"], step["start"], step["stop"]) == (" ", 1, 0)
