"""Documents and questions for tests."""

from __future__ import annotations

from typing import Any

from radixserve.rag import Document, RagAnswer

SETTINGS: dict[str, Any] = {"max_tokens": 4, "instruction": "Answer from the documents."}
TEXTS = {
    "trees": "A tree has nodes, and each node but the root has one parent above it.",
    "pages": "A page holds sixteen tokens, and a prefix is a row of such pages.",
    "leases": "Whoever holds a lease keeps its pages from being evicted by others.",
    "salts": "A salt is mixed into the keys, so that two users never share a page.",
}


def documents(*names: str) -> list[Document]:
    """Those of ``TEXTS`` with these names, best first."""
    return [Document(name, TEXTS[name], name.title()) for name in names]


def order(answer: RagAnswer) -> list[str]:
    """The ids as they were sent."""
    return [each.document.id for each in answer.documents]
