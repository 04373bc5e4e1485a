"""What the server remembers of texts: the tokens of parts of recent prompts, and its own answers.

So only the new part of a prompt is tokenized, and an answer that comes back in a conversation's
history has the very tokens that were generated, where its text is the same to the letter: then the
prompt extends the one before token by token. ``docs/agents.md`` says what that is good for.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import xxhash

from radixserve.server.fair import FairLru
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import count, pack, unpack

MOST = 1_000_000
MOST_BYTES = 128 * 2**20
"""Of all tenants together."""
OVERHEAD = 300
"""Bytes that an entry takes beside its text and its tokens."""
VARIANTS = 8
"""Answers to one prompt that are remembered, the last ones."""
TAIL = 256
"""Characters from a prompt's end that are remembered with its answers."""

Key = tuple[str, bytes, str | bytes]
"""What it is, the namespace, and the text of a part, or a digest."""
PART, AFTER, SAID = "part", "after", "said"


class Owner(NamedTuple):
    """For whom a prompt is tokenized. What is remembered is found by the same tenant and namespace
    alone, so that nobody learns from a time what others have sent."""

    tenant: str
    namespace: bytes
    leaves: bool = True
    """Whether anything may be remembered of it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an answer to a prompt begins."""

    owner: Owner
    before: bytes
    """Digest of the prompt's tokens before its last seam."""
    text: str
    """The prompt's text from there on."""
    tokens: bytes
    """The tokens of ``text``, int32 big-endian."""
    length: int
    """Characters of the whole prompt."""
    digest: bytes
    """Of the whole prompt's text."""
    tail: str
    """The end of it."""


@dataclass(slots=True)
class Remembered:
    """An answer of this server."""

    place: Place
    generated: bytes
    """Its tokens, without the one that ended it."""
    end: int | None = None
    """The token that ended it."""
    reasoning: str | None = None
    """As it was told; None if it was not."""
    arguments: tuple[str, ...] = ()
    """Of its calls, as they were told."""
    _said: str | None = None
    _spelt: bool = False
    _spliced: tuple[str, bytes] | None = None
    _looked: bool = False

    @property
    def size(self) -> int:
        """Bytes, about."""
        place = self.place
        texts = sum(map(sys.getsizeof, (place.text, place.tail, *self.arguments)))
        return OVERHEAD + texts + len(place.tokens) + 3 * len(self.generated)

    def said(self, tokenizer: Tokenizer) -> str | None:
        """The text that the tokens stand for; None where nobody can say. O(tokens) once."""
        if not self._spelt:
            self._said = tokenizer.spelling(unpack(self.generated))
            self._spelt = True
        return self._said

    def is_just(self, content: str, tokenizer: Tokenizer) -> bool:
        """Whether the tokens stand for ``content``, which is what the client was told of them, and
        for nothing more, not even white space around it; or nobody can say. O(tokens)."""
        said = self.said(tokenizer)
        return said is None or said == content == content.strip()

    def spliced(self, tokenizer: Tokenizer) -> tuple[str, bytes] | None:
        """The text from the prompt's last seam to the answer's end and its very tokens; None where
        they are those of the text anyway, or may stand for something else.

        O(tokens) once: they are compared with the text's own.
        """
        if not self._looked:
            self._spliced = self._splice(tokenizer)
            self._looked = True
        return self._spliced

    def _splice(self, tokenizer: Tokenizer) -> tuple[str, bytes] | None:
        said = self.said(tokenizer)
        if not said:
            return None
        text, own = self.place.text + said, self.place.tokens + self.generated
        plain = tokenizer.encode(text, add_special_tokens=False)
        # A model may spell out a special token letter by letter, which is something else.
        if plain == own or _added(plain, tokenizer) != _added(own, tokenizer):
            return None
        return text, own


class Piece(NamedTuple):
    """A part of a prompt."""

    text: str
    tokens: bytes
    """int32 big-endian."""
    generated: bool = False
    """Whether it ends with an answer, whose tokens are other ones than the text's."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt in tokens."""

    pieces: list[Piece]
    place: Place | None = None
    """Where an answer to it begins; None where nobody could find it again."""
    special: bool = False
    """Whether special tokens are around it; then it has one piece."""

    @property
    def tokens(self) -> bytes:
        """All of them, int32 big-endian. O(tokens)."""
        return b"".join(piece.tokens for piece in self.pieces)

    def places(self, ends: Sequence[int], tokenizer: Tokenizer) -> list[int]:
        """How many of the tokens end at or before each of the characters ``ends`` of the prompt,
        counted from 0: a token that reaches beyond does not count.

        O(pieces), and the pieces in which ends lie are tokenized again.
        """
        begins = [*accumulate((len(piece.text) for piece in self.pieces), initial=0)]
        before = [*accumulate((count(piece.tokens) for piece in self.pieces), initial=0)]
        found = []
        for end in ends:
            at = bisect_right(begins, end) - 1
            into = end - begins[at]
            inside = self._inside(self.pieces[at], into, tokenizer) if into else 0
            found.append(before[at] + inside)
        return found

    def _inside(self, piece: Piece, end: int, tokenizer: Tokenizer) -> int:
        if piece.generated:
            tokens = unpack(piece.tokens)
            return len(tokens) - tokenizer.spelt_by(tokens, piece.text[end:])
        [place] = tokenizer.places(piece.text, [end], add_special_tokens=self.special)
        return place


class TextMemory:
    """Any number of threads may use it.

    Args:
        tokenizer: Gives the model's, once it is loaded.
    """

    def __init__(
        self, tokenizer: Callable[[], Tokenizer], *, most: int = MOST, most_bytes: int = MOST_BYTES
    ):
        self._tokenizer = tokenizer
        self._kept: FairLru[Key, bytes | tuple[Remembered, ...]] = FairLru(
            most=most, most_bytes=most_bytes
        )

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer()

    @property
    def finds_answers(self) -> bool:
        """Whether answers can be found again: with some tokenizers nothing can be proved."""
        return self.tokenizer.seams.pattern is not None and self.tokenizer.spelling([]) is not None

    @property
    def size(self) -> int:
        """Bytes of all that is remembered, about."""
        return self._kept.size

    def encode(self, text: str, owner: Owner | None, *, param: str) -> Encoded:
        """A prompt's tokens, without special ones around it; for None nothing is remembered.

        They are ``Tokenizer.encode``'s, but for answers that were remembered, which have their own.
        What is tokenized is what is new; the rest costs looking it up, O(len(text)) at the speed of
        a copy, and O(1) for each seam.

        Raises:
            InvalidRequestError: as ``Tokenizer.encode``.
        """
        starts = [] if owner is None else self.tokenizer.seams.starts(text)
        if owner is None or not starts:
            tokens = self.tokenizer.encode(text, add_special_tokens=False, param=param)
            return Encoded([Piece(text, tokens)])
        cuts = [*([] if starts[0] == 0 else [0]), *starts, len(text)]
        parts = self._parts([text[begin:end] for begin, end in pairwise(cuts)], owner, param)
        hasher = xxhash.xxh3_128()
        pieces: list[Piece] = []
        at = 0
        while at < len(parts):
            begin, before = cuts[at], hasher.digest()
            own = self._own(text, cuts, at, before, owner)
            tokens, after = own or (parts[at], at + 1)
            pieces.append(Piece(text[begin : cuts[after]], tokens, own is not None))
            hasher.update(tokens)
            at = after
        digest = xxhash.xxh3_128_digest(utf8(text))
        place = Place(owner, before, text[begin:], tokens, len(text), digest, text[-TAIL:])
        return Encoded(pieces, place)

    def remember(
        self,
        place: Place,
        generated: list[int],
        *,
        end: int | None = None,
        identity: bytes | None = None,
        reasoning: str | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        """An answer that begins at ``place``.

        Args:
            generated: Its tokens, without the one that ended it, which is ``end``.
            identity: What a client is going to send back of it.
            reasoning: What the client was told of that.
            arguments: Likewise of those of its calls.
        """
        if not place.owner.leaves or not generated:
            return
        answer = Remembered(place, pack(generated), end, reasoning, arguments)
        self._add((AFTER, place.owner.namespace, place.before), answer)
        if identity is not None:
            self._add((SAID, place.owner.namespace, identity), answer)

    def answers(self, owner: Owner, identity: bytes) -> tuple[Remembered, ...]:
        """The answers of which a client would send back ``identity``, the last one first."""
        return self._found(owner.tenant, (SAID, owner.namespace, identity))

    def forget(self, tenant: str, namespace: bytes | None = None) -> None:
        """What is remembered for a tenant, or for one namespace of it."""
        self._kept.forget(tenant, None if namespace is None else lambda key: key[1] == namespace)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def _parts(self, texts: list[str], owner: Owner, param: str) -> list[bytes]:
        """The tokens of each part of a prompt."""
        known = {
            text: self._kept.get(owner.tenant, (PART, owner.namespace, text)) for text in texts
        }
        new = [text for text, tokens in known.items() if tokens is None]
        if new:
            encoded = self.tokenizer.encode_each(new, add_special_tokens=False, param=param)
            known.update(zip(new, encoded, strict=True))
            if owner.leaves:
                for text, packed in zip(new, encoded, strict=True):
                    size = OVERHEAD + sys.getsizeof(text) + len(packed)
                    self._kept.put(owner.tenant, (PART, owner.namespace, text), packed, size)
        return [tokens for text in texts if isinstance(tokens := known[text], bytes)]

    def _own(
        self, text: str, cuts: list[int], at: int, before: bytes, owner: Owner
    ) -> tuple[bytes, int] | None:
        """The tokens of an answer that was given at the seam ``cuts[at]`` and stands there now, and
        the place in ``cuts`` where it ends."""
        for answer in self._found(owner.tenant, (AFTER, owner.namespace, before)):
            spliced = answer.spliced(self.tokenizer)
            if spliced is None or not text.startswith(spliced[0], cuts[at]):
                continue
            end = cuts[at] + len(spliced[0])
            after = bisect_left(cuts, end)
            if cuts[after] == end:
                return spliced[1], after
        return None

    def _found(self, tenant: str, key: Key) -> tuple[Remembered, ...]:
        found = self._kept.get(tenant, key)
        return found if isinstance(found, tuple) else ()

    def _add(self, key: Key, answer: Remembered) -> None:
        tenant = answer.place.owner.tenant
        answers = (answer, *self._found(tenant, key))[:VARIANTS]
        self._kept.put(tenant, key, answers, sum(each.size for each in answers))


def utf8(text: str) -> bytes:
    """``text`` as it is hashed; half a surrogate pair is the tokenizer's to refuse."""
    return text.encode("utf-8", "surrogatepass")


def _added(tokens: bytes, tokenizer: Tokenizer) -> list[int]:
    return [token for token in unpack(tokens) if token in tokenizer.added_ids]
