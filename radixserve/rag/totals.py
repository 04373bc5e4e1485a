"""What was reused of each document over many answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from radixserve.rag.answer import RagAnswer
from radixserve.rag.document import Document


@dataclass(slots=True)
class DocumentTotal:
    """One document in all prompts that it was sent in."""

    document: Document
    """As it was sent first."""
    sent: int = 0
    """Times."""
    tokens: int = 0
    """Of all times."""
    seen: int = 0
    """Tokens of the times at which it had been sent before: the most that could be reused."""
    reused: int = 0
    """Tokens that were not computed, as far as the server says."""


def by_document(answers: Iterable[RagAnswer]) -> list[DocumentTotal]:
    """The documents of ``answers``, told apart by their ids; the one with the most tokens comes
    first. O(n log n) in documents sent."""
    totals: dict[str, DocumentTotal] = {}
    for answer in answers:
        for each in answer.documents:
            total = totals.setdefault(each.document.id, DocumentTotal(each.document))
            total.sent += 1
            total.tokens += each.tokens
            total.seen += each.tokens if each.seen else 0
            total.reused += each.reused or 0
    return sorted(totals.values(), key=lambda total: -total.tokens)
