"""What the examples share: questions, and how much is reused in one order and in the other."""

from __future__ import annotations

from collections.abc import Callable

from radixserve.rag import Document, Rag

URL = "http://127.0.0.1:8000"
CHUNK = 256
"""Tokens of a chunk, about; four of them fit into any model's context."""
TOP = 4
QUESTIONS = [
    "What does the with statement do?",
    "Which method does the with statement call on entry?",
    "How does a with statement deal with an exception?",
    "What does the try statement specify?",
    "When is the else clause of a try statement executed?",
    "What does the finally clause of a try statement do?",
    "How does the try statement find a handler for an exception?",
    "What does raise do without an expression?",
    "How is an exception chained with raise from?",
    "Which method of a context manager is called when the with block ends?",
    "What happens to an exception that is raised in a finally clause?",
    "How is a with statement with several items executed?",
]

Retrieve = Callable[[str], list[Document]]


def compare(retrieve: Retrieve, url: str = URL, **settings: object) -> dict[str, int]:
    """Ask everything twice, with the documents by rank and by what is cached; print what of them
    was reused. Returns the reused tokens of both orders."""
    totals = {}
    for order in ("rank", "cached"):
        # A salt each, so that neither finds what the other has left.
        with Rag(url, order=order, cache_salt=f"example {order}", **settings) as rag:
            reused = tokens = 0
            for question in QUESTIONS:
                answer = rag.ask(question, retrieve(question))
                reused += answer.reused_tokens
                tokens += sum(each.tokens for each in answer.documents)
        print(question, answer.text, answer.table(), sep="\n", end="\n\n")
        print(f"order={order}: {reused:,} of {tokens:,} tokens of documents reused\n")
        totals[order] = reused
    return totals
