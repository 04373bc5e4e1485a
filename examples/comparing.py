"""What the examples share: questions, and how much is reused in one order and in the other."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable
from contextlib import ExitStack

from radixserve.errors import RadixServeError
from radixserve.rag import Document, Rag, RagAnswer, by_document

URL = "http://127.0.0.1:8000"
CHUNK = 256
"""Tokens of a chunk at most, as the embedder counts them; it looks at no more than 512."""
TOP = 4
ANSWER = 32
"""Tokens of an answer at most: what is reused is known before the first of them."""
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
LINE = "{:>8}  {:>6}  {:>6}  {:>6}  {}"

Retrieve = Callable[[str], list[Document]]


def compare(
    retrieve: Retrieve, url: str = URL, *, questions: int = len(QUESTIONS), **settings: object
) -> dict[str, int]:
    """Ask each question twice, with the documents by rank and by what is cached; print what of them
    was reused. Returns the reused tokens of both orders."""
    answers: dict[str, list[RagAnswer]] = {"rank": [], "cached": []}
    # A salt each, so that neither finds what the other has left, nor what an earlier run has.
    run = secrets.token_hex(4)
    settings = {"max_tokens": ANSWER} | settings
    with ExitStack() as stack:
        rags = {}
        for order in answers:
            rag = Rag(url, order=order, cache_salt=f"{order} {run}", **settings)
            rags[order] = stack.enter_context(rag)
        print("\nTokens of each question's documents, and how many were reused, by order\n")
        print(LINE.format("question", "tokens", *answers, ""))
        for number, question in enumerate(QUESTIONS[:questions], 1):
            documents = retrieve(question)
            for order, rag in rags.items():
                answers[order].append(rag.ask(question, documents))
            reused = [said[-1].reused_tokens for said in answers.values()]
            tokens = sum(each.tokens for each in answers["rank"][-1].documents)
            print(LINE.format(number, tokens, *reused, question), flush=True)
    last = answers["cached"][-1]
    print(f"\n{question}\n\n{last.text}\n\n{last.table()}\n")
    _print_documents(answers)
    return _print_totals(answers)


def _print_documents(answers: dict[str, list[RagAnswer]]) -> None:
    """What was reused of each document that was sent more than once."""
    print("The same of each document that was sent more than once\n")
    print(LINE.format("times", "tokens", *answers, "document"))
    others = {each.document.id: each.reused for each in by_document(answers["cached"])}
    for each in by_document(answers["rank"]):
        if each.sent > 1:
            name = each.document.id
            print(LINE.format(each.sent, each.tokens, each.reused, others[name], name))
    print()


def _print_totals(answers: dict[str, list[RagAnswer]]) -> dict[str, int]:
    totals = {order: sum(each.reused_tokens for each in said) for order, said in answers.items()}
    for order, said in answers.items():
        tokens = sum(use.tokens for each in said for use in each.documents)
        print(f"order={order}: {totals[order]:,} of {tokens:,} tokens of documents reused")
    if totals["rank"]:
        print(f"{totals['cached'] / totals['rank']:.1f}x as many")
    return totals


def run(example: Callable[..., object]) -> None:
    """``example`` with a real embedder, as the command line says; a server that does not answer is
    told of before anything is computed."""
    parser = argparse.ArgumentParser(description="Ask about Python's documentation, in two orders.")
    parser.add_argument("url", nargs="?", default=URL, help="of a server (%(default)s)")
    parser.add_argument(
        "--questions",
        type=int,
        default=len(QUESTIONS),
        choices=range(1, len(QUESTIONS) + 1),
        metavar="N",
        help="how many to ask, up to %(default)s",
    )
    options = parser.parse_args()
    try:
        with Rag(options.url, max_tokens=1) as rag:
            rag.ask("Ready?", [Document("ready", "Yes.")])
        from minilm import MiniLM

        example(MiniLM(), options.url, questions=options.questions)
    except RadixServeError as error:
        sys.exit(str(error))
