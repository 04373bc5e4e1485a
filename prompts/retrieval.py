"""Prompts for retrieval that keep what repeats at the front, where a prefix cache finds it."""

from __future__ import annotations

from collections.abc import Sequence

from radixserve.prompts.layout import Message, layout

RAG = layout("rag")
INSTRUCTION = str(RAG.parts[0].default)


def retrieval_messages(
    documents: Sequence[tuple[str, str]], question: str, *, instruction: str = INSTRUCTION
) -> list[Message]:
    """Chat messages that ask ``question`` over ``documents``, given as (title, text).

    The instruction and the documents go into the system message and the question comes last, so
    that two questions over the same documents differ only in their last tokens. The order of the
    documents is kept: whoever wants more reuse hands them over in a stable order.
    """
    messages: list[Message] = RAG.messages(
        instructions=instruction,
        documents=[{"title": title, "text": text.strip()} for title, text in documents],
        question=question,
    )
    return messages
