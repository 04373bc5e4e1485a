"""Prompts for retrieval that keep what repeats at the front, where a prefix cache finds it."""

from __future__ import annotations

from collections.abc import Sequence

Message = dict[str, str]

INSTRUCTION = (
    "Answer from the documents below. Name the document that the answer comes from. "
    "If they do not hold the answer, say so."
)


def retrieval_messages(
    documents: Sequence[tuple[str, str]], question: str, *, instruction: str = INSTRUCTION
) -> list[Message]:
    """Chat messages that ask ``question`` over ``documents``, given as (title, text).

    The instruction and the documents go into the system message and the question comes last, so
    that two questions over the same documents differ only in their last tokens. The order of the
    documents is kept: whoever wants more reuse hands them over in a stable order.
    """
    parts = [instruction]
    parts += [f"Document: {title}\n{text.strip()}" for title, text in documents]
    return [
        {"role": "system", "content": "\n\n".join(parts)},
        {"role": "user", "content": question},
    ]
