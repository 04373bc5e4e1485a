"""Where a text can be cut so that its parts, tokenized one by one, give the tokens of the whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import tokenizers

from radixserve.text.vocabulary import steps_of

NORMALIZERS = frozenset(
    {
        "BertNormalizer",
        "ByteLevel",
        "Lowercase",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Nmt",
        "Precompiled",
        "Prepend",
        "Replace",
        "Strip",
        "StripAccents",
    }
)
PRE_TOKENIZERS = frozenset(
    {
        "BertPreTokenizer",
        "ByteLevel",
        "CharDelimiterSplit",
        "Digits",
        "Metaspace",
        "Punctuation",
        "Split",
        "UnicodeScripts",
        "Whitespace",
        "WhitespaceSplit",
    }
)
"""Steps that look at one piece between added tokens and at nothing beside it. ``Metaspace`` asks
whether the piece begins the text, which the first one of a part does not: the seam stands before
it."""
RANDOM = ("dropout", "alpha", "nbest_size")
"""Settings under which a model's own tokens of a text are not always the same."""


@dataclass(frozen=True, slots=True)
class Seams:
    """The added tokens before which a text can be cut, whatever stands on either side.

    The tokenizers library looks for added tokens first, from left to right, the longest one at
    the leftmost place, and treats what stands between them piece by piece. So a cut is safe before
    an added token that is found wherever its text stands: no other one covers it or runs into it,
    and it does not ask what is beside it.
    """

    pattern: re.Pattern[str] | None = None
    """Of the texts of those tokens; None where there are none."""

    def starts(self, text: str) -> list[int]:
        """The places of all seams in ``text``, in characters. O(len(text))."""
        if self.pattern is None:
            return []
        return [found.start() for found in self.pattern.finditer(text)]


def read_seams(backend: tokenizers.Tokenizer, wanted: Callable[[str], bool]) -> Seams:
    """The seams of ``backend``: none, unless its settings show that its tokens are the same.

    Args:
        wanted: Whether texts are to be cut before this token; each costs a little time.
    """
    normalizers = {step["type"] for step in steps_of(backend.normalizer, "normalizers")}
    splits = {step["type"] for step in steps_of(backend.pre_tokenizer, "pretokenizers")}
    added = backend.get_added_tokens_decoder().values()
    if (
        not (normalizers <= NORMALIZERS and splits <= PRE_TOKENIZERS)
        or any(getattr(backend.model, name, None) for name in RANDOM)
        or any(token.single_word for token in added)
        or backend.encode_special_tokens
    ):
        return Seams()
    first = [token for token in added if not token.normalized and token.content]
    contents = [token.content for token in first]
    clean = [
        token.content
        for token in first
        if not token.lstrip
        and token.content == token.content.strip()
        and wanted(token.content)
        and not any(_hides(other, token.content) for other in contents)
    ]
    if not clean:
        return Seams()
    return Seams(re.compile("|".join(map(re.escape, sorted(clean, key=len, reverse=True)))))


def _hides(other: str, content: str) -> bool:
    """Whether ``content`` may stand in a text where ``other`` is found in its place."""
    if other != content and content in other:
        return True
    return any(other.endswith(content[:size]) for size in range(1, min(len(other), len(content))))
