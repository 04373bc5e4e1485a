"""What cannot be asked is refused at once, with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve.errors import InvalidRequestError
from radixserve.rag.document import LONGEST, Document, ranked

ONE = Document("a", "Text.")


def test_documents_come_by_falling_score_and_as_they_came_among_equals():
    given = [
        Document(name, "x", score=score) for name, score in zip("abcd", (1, 3, 1, 2.5), strict=True)
    ]
    assert [each.id for each in ranked("?", given)] == ["b", "d", "a", "c"]


def test_without_scores_they_stay_as_they_came():
    given = [Document(name, "x") for name in "bca"]
    assert ranked("?", given) == given


REFUSED: list[tuple[Any, Any, str, str]] = [
    ("", [ONE], "question", "say what to ask"),
    (" \n", [ONE], "question", "say what to ask"),
    (None, [ONE], "question", "say what to ask"),
    (5, [ONE], "question", "not int"),
    ("\ud800", [ONE], "question", "surrogate"),
    ("?", ONE, "documents", "must be a list"),
    ("?", "text", "documents", "must be a list"),
    ("?", [], "documents", "at least one"),
    ("?", ["text"], "documents[0]", "radixserve.rag.Document"),
    ("?", [ONE, Document("b", "x"), Document("a", "y")], "documents[2].id", "'a'"),
    ("?", [Document("", "x")], "documents[0].id", "empty"),
    ("?", [ONE, Document("b", " \n ")], "documents[1].text", "leave the document out"),
    ("?", [Document("a", b"x")], "documents[0].text", "not bytes"),  # type: ignore[arg-type]
    ("?", [Document("a", "x\udfff")], "documents[0].text", "surrogate"),
    ("?", [Document("a", "x", score=float("nan"))], "documents[0].score", "finite"),
    ("?", [Document("a", "x", score=1.0), Document("b", "x")], "documents[1].score", "or none"),
    ("?", [ONE, Document("b", "x" * LONGEST)], "documents[1].text", "chunks"),
    ("?" * LONGEST, [ONE], "question", "The question is the most of it"),
]


@pytest.mark.parametrize(
    ("question", "documents", "param", "advice"), REFUSED, ids=[row[2] for row in REFUSED]
)
def test_what_cannot_be_asked_is_refused(question: Any, documents: Any, param: str, advice: str):
    with pytest.raises(InvalidRequestError) as caught:
        ranked(question, documents)
    assert caught.value.param == param
    assert advice in str(caught.value)
    assert len(str(caught.value)) < 400
