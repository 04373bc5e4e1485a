"""What was reused of each document over many answers."""

from __future__ import annotations

from dataclasses import replace

from radixserve.rag import DocumentReuse, DocumentTotal, RagAnswer, by_document
from tests.rag.asked import documents


def answer(*uses: DocumentReuse) -> RagAnswer:
    return RagAnswer(
        text="",
        finish_reason="stop",
        messages=[],
        documents=list(uses),
        counted="exact",
        prompt_tokens=100,
        cached_tokens=None,
        completion_tokens=1,
    )


def test_documents_are_summed_over_answers_with_the_most_tokens_first():
    [trees, pages] = documents("trees", "pages")
    totals = by_document(
        [
            answer(DocumentReuse(trees, 0, 30, 0, False), DocumentReuse(pages, 1, 40, 0, False)),
            answer(DocumentReuse(pages, 1, 40, 25, True)),
        ]
    )
    assert totals == [
        DocumentTotal(pages, sent=2, tokens=80, seen=40, reused=25),
        DocumentTotal(trees, sent=1, tokens=30, seen=0, reused=0),
    ]


def test_a_document_is_the_same_one_with_another_score():
    [one] = documents("trees")
    other = replace(one, score=0.5)
    uses = [answer(DocumentReuse(each, 0, 30, None, False)) for each in (one, other)]
    assert [(each.sent, each.reused) for each in by_document(uses)] == [(2, 0)]
