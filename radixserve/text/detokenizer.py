"""Token ids to text, one at a time, never half a character, never a look at the prompt."""

from __future__ import annotations

import codecs
from typing import Protocol

import tokenizers

from radixserve.text.vocabulary import Vocabulary

LONGEST_CHARACTER = 4
"""Bytes of the longest UTF-8 character, and so the most tokens that can share one."""


class Detokenizer(Protocol):
    """Turns the tokens of one answer into text as they come.

    What ``push`` and ``finish`` returned, joined, is ``Tokenizer.decode`` of all the tokens.
    """

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` completes. O(1): the answer so far does not matter."""

    def finish(self) -> str:
        """The text still held back: U+FFFD for a character that was never completed."""


class ByteDetokenizer:
    """For tokenizers whose text is the joined bytes of its tokens.

    It holds at most the three bytes of an unfinished character.
    """

    __slots__ = ("_decoder", "_hidden", "_pieces", "_strip")

    def __init__(self, vocabulary: Vocabulary, *, hidden: frozenset[int], continuation: bool):
        self._pieces = vocabulary.pieces
        self._hidden = hidden
        self._strip = vocabulary.strip_first_space and not continuation
        self._decoder = codecs.getincrementaldecoder("utf-8")(vocabulary.errors)

    def push(self, token_id: int) -> str:
        if token_id in self._hidden or not 0 <= token_id < len(self._pieces):
            return ""
        return self._begin(self._decoder.decode(self._pieces[token_id]))

    def finish(self) -> str:
        return self._begin(self._decoder.decode(b"", True))

    def _begin(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class WindowDetokenizer:
    """For any other tokenizer (WordPiece, Metaspace, ...): decodes the last few tokens afresh.

    Exact where the text of a token depends on the tokens beside it and no others. At most
    ``2 * LONGEST_CHARACTER`` tokens are decoded at a time.
    """

    __slots__ = ("_backend", "_before", "_hidden", "_pending", "_size")

    def __init__(self, backend: tokenizers.Tokenizer, size: int, hidden: frozenset[int]):
        self._backend = backend
        self._size = size
        self._hidden = hidden
        self._before: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        if token_id in self._hidden or not 0 <= token_id < self._size:
            return ""
        self._pending.append(token_id)
        text = self._news()
        if text.endswith("\ufffd") and len(self._pending) < LONGEST_CHARACTER:
            return ""
        self._before, self._pending = self._pending, []
        return text

    def finish(self) -> str:
        text = self._news() if self._pending else ""
        self._before, self._pending = [], []
        return text

    def _news(self) -> str:
        before = self._decode(self._before)
        text = self._decode(self._before + self._pending)
        if text.startswith(before):
            return text[len(before) :]
        return self._decode(self._pending)

    def _decode(self, tokens: list[int]) -> str:
        # Some of the library's decoders panic over no tokens.
        return self._backend.decode(tokens, skip_special_tokens=False) if tokens else ""
