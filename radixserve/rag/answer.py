"""An answer from documents, and which of them were reused for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from radixserve.rag.document import Document

Message = dict[str, str]
Counted = Literal["exact", "by document", "estimated"]
"""How the tokens of a document were counted: in the prompt itself; each document for itself, which
is off by the few tokens that texts share at their seams; by its part of the characters."""


@dataclass(frozen=True, slots=True)
class DocumentReuse:
    """One document in one prompt."""

    document: Document
    rank: int
    """0 is the best."""
    tokens: int
    """With what the layout writes in front of it."""
    reused: int | None
    """Of these, the tokens that were not computed; None if the server does not say."""
    seen: bool
    """Whether the same text was sent before, lately, in whatever place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RagAnswer:
    """What was answered, and what of the documents was reused for it."""

    text: str
    finish_reason: str | None
    messages: list[Message]
    """As they were sent."""
    documents: list[DocumentReuse]
    """In the order in which they were sent; without those that the history held already."""
    counted: Counted
    prompt_tokens: int
    cached_tokens: int | None
    """Prompt tokens that were not computed, those of the instruction among them; None if the server
    does not say."""
    completion_tokens: int

    @property
    def history(self) -> list[Message]:
        """The conversation so far, for the next question: word for word what was sent and said, so
        that all of it is reused."""
        return [*self.messages, {"role": "assistant", "content": self.text}]

    @property
    def reused_tokens(self) -> int:
        """Of the documents."""
        return sum(each.reused or 0 for each in self.documents)

    @property
    def seen_tokens(self) -> int:
        """Of documents that were sent before: what could have been reused at most, had they all
        stood where they stood before, and had nothing been evicted."""
        return sum(each.tokens for each in self.documents if each.seen)

    def table(self) -> str:
        """The documents, a line each."""
        rows = [("place", "rank", "tokens", "reused", "seen", "document")]
        for place, each in enumerate(self.documents):
            reused = "?" if each.reused is None else f"{each.reused:,}"
            seen = "yes" if each.seen else "no"
            numbers = (f"{place + 1}", f"{each.rank + 1}", f"{each.tokens:,}", reused, seen)
            rows.append((*numbers, each.document.id))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = [
            "  ".join(
                [*(text.rjust(width) for text, width in zip(row, widths, strict=False)), row[5]]
            )
            for row in rows
        ]
        if self.counted != "exact":
            lines.append(f"(tokens {self.counted})")
        return "\n".join(lines)


def parts(content: str, instruction: str, documents: Sequence[Document]) -> list[str]:
    """The part of ``content`` that belongs to each document: from the end of what stands before it
    to its own end. They follow each other without a gap.

    Raises:
        ValueError: ``content`` does not hold all of them in this order.
    """
    end = content.index(instruction) + len(instruction)
    found = []
    for document in documents:
        text = document.text.strip()
        start, end = end, content.index(text, end) + len(text)
        found.append(content[start:end])
    return found


def reused(cached: int | None, before: int, tokens: Sequence[int]) -> list[int | None]:
    """Of each document's ``tokens``, how many lie among the first ``cached`` of a prompt in which
    ``before`` tokens stand in front of the first document. O(documents)."""
    found: list[int | None] = []
    for count in tokens:
        found.append(None if cached is None else min(max(cached - before, 0), count))
        before += count
    return found
