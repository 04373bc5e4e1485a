"""One request beside earlier ones of its tenant: where they part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

from radixserve.explain.alike import alike
from radixserve.explain.bodies import Kept, decoded
from radixserve.explain.divergence import Divergence, Seam, diverge, unanswered
from radixserve.explain.fingerprints import fingerprints
from radixserve.explain.trail import Record
from radixserve.explain.walk import TOOLS
from radixserve.tokens import TOKEN_BYTES, count, unpack

BEFORE, BEHIND = 64, 48
"""Tokens around a place, whose text says which part of the body it is in."""
PIECE, LEAST_PIECE = 8, 4
"""Tokens in the middle of an answer by which it is known again, and of the shortest that is: where
it begins and ends, the template may have made other tokens of it."""
ASKING = frozenset({"user", "system", "developer"})
"""Roles of messages that answer nothing."""
UNLIKE = frozenset({"text", "fields", "tools_changed"})
"""What two requests that have nothing to do with each other look like."""


class Decode(Protocol):
    """The text of tokens, as a tokenizer has it."""

    def __call__(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


class Beside:
    """A request that is compared with earlier ones: what each comparison needs of it is made once,
    and only when it is needed. To be used on one thread at a time."""

    def __init__(self, later: Record, decode: Decode):
        self._later = later
        self._decode = decode
        self._seams: dict[int, Seam] = {}

    @cached_property
    def _body(self) -> dict[str, Any]:
        return decoded(self._later.body)

    @cached_property
    def _tools(self) -> frozenset[bytes]:
        return _tools(self._later.body)

    @cached_property
    def _fingerprints(self) -> frozenset[int]:
        return frozenset(fingerprints(self._body))

    def like(self, earlier: Record, common: int) -> bool:
        """Whether it is ``earlier`` but for something, although they have only ``common`` tokens in
        common. O(bytes of both), and cheap if they have nothing to do with each other."""
        ours = decoded(earlier.body)
        if not self._related(earlier, ours):
            return False
        place = self._place(earlier, ours, common)
        if place is None:
            return False
        return place.guess not in UNLIKE or alike(ours, self._body)

    def place(self, earlier: Record, common: int) -> Divergence | None:
        """Where it parts from ``earlier``, with which it has ``common`` tokens in common; None
        where that cannot be known, as where one has no body. O(bytes of both)."""
        return self._place(earlier, decoded(earlier.body), common)

    def _place(self, earlier: Record, ours: dict[str, Any], common: int) -> Divergence | None:
        if not ours or not self._body:
            return None
        answer = None
        if common >= earlier.length and earlier.answer:
            ours, answer = self._answered(ours, earlier)
        found = diverge(ours, self._body, self._seam(common), answer=answer)
        if found is not None and found.guess == "template" and earlier.answer:
            return self._unanswered(ours, earlier, found)
        return found

    def _related(self, earlier: Record, ours: dict[str, Any]) -> bool:
        """Whether anything stands in both, if only a tool, or what answered ``earlier``."""
        piece = _middle(earlier.answer)
        if len(piece) >= LEAST_PIECE * TOKEN_BYTES and piece in self._later.prompt:
            return True
        if not self._tools.isdisjoint(_tools(earlier.body)):
            return True
        return not self._fingerprints.isdisjoint(fingerprints(ours))

    def _seam(self, common: int) -> Seam:
        """Its text around the place, mostly the same for all that have little in common."""
        seam = self._seams.get(common)
        if seam is None:
            tokens, at = self._later.prompt, common * TOKEN_BYTES
            before = self._text(tokens[max(0, at - BEFORE * TOKEN_BYTES) : at])
            behind = self._text(tokens[at : at + BEHIND * TOKEN_BYTES])
            seam = self._seams[common] = Seam(before + behind, len(before))
        return seam

    def _text(self, tokens: bytes) -> str:
        return self._decode(unpack(tokens), skip_special_tokens=False)

    def _answered(self, ours: dict[str, Any], earlier: Record) -> tuple[dict[str, Any], int | None]:
        """``ours`` with the answer behind it, and its place, if the later one has it as text."""
        for name, messages, sent in _behind(ours, self._body):
            if sent.get("role") in ASKING:
                continue
            if isinstance(sent.get("content"), str):
                text = self._decode(unpack(earlier.answer))
                answer = {"role": "assistant", "content": text}
                return {**ours, name: [*messages, answer]}, len(messages)
        return ours, None

    def _unanswered(self, ours: dict[str, Any], earlier: Record, found: Divergence) -> Divergence:
        """``found``, or that the answer is left out, if somebody else speaks in its place."""
        for name, messages, sent in _behind(ours, self._body):
            place = len(messages)
            if place == found.message and sent.get("role") in ASKING:
                text = self._decode(unpack(earlier.answer))
                return unanswered(name, place, text, self._body)
        return found


def _tools(body: Kept) -> frozenset[bytes]:
    """As they were sent, where they are a list."""
    fields = (body.get(name) for name in TOOLS)
    return frozenset(tool for field in fields if isinstance(field, tuple) for tool in field)


def _middle(answer: bytes) -> bytes:
    start = max(0, count(answer) - PIECE) // 2
    return answer[start * TOKEN_BYTES : (start + PIECE) * TOKEN_BYTES]


def _behind(
    ours: dict[str, Any], theirs: dict[str, Any]
) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """The lists of messages in ``ours``, each with its name and the message that ``theirs`` has
    behind it."""
    for name in ("messages", "input"):
        messages, later = ours.get(name), theirs.get(name)
        if isinstance(messages, list) and isinstance(later, list) and len(later) > len(messages):
            sent = later[len(messages)]
            if isinstance(sent, dict):
                yield name, messages, sent
