"""Where documents are in a prompt, and what of them was reused."""

from __future__ import annotations

import pytest

from radixserve.rag.answer import DocumentReuse, RagAnswer, parts, reused
from radixserve.rag.document import Document
from tests.rag.asked import documents


def test_parts_follow_each_other_without_a_gap():
    one, two = documents("trees", "pages")
    content = f"Answer.\n\nDocument: Trees\n{one.text}\n\nDocument: Pages\n{two.text}"
    found = parts(content, "Answer.", [one, two])
    assert "Answer." + "".join(found) == content
    assert found[1].startswith("\n\nDocument: Pages")


def test_a_text_that_is_part_of_another_is_found_in_its_own_place():
    content = "Say it.\n\nDocument: long\nit is it\n\nDocument: short\nit"
    long, short = Document("long", "it is it"), Document("short", " it\n")
    assert parts(content, "Say it.", [long, short])[1] == "\n\nDocument: short\nit"


@pytest.mark.parametrize(
    ("cached", "expected"),
    [
        (0, [0, 0, 0]),
        (10, [0, 0, 0]),
        (14, [4, 0, 0]),
        (15, [5, 0, 0]),
        (21, [5, 6, 0]),
        (1000, [5, 7, 3]),
        (None, [None, None, None]),
    ],
)
def test_the_reused_tokens_are_the_first_ones(cached: int | None, expected: list[int | None]):
    assert reused(cached, 10, [5, 7, 3]) == expected


def test_the_table_has_a_line_for_each_document_and_says_how_tokens_were_counted():
    [one, two] = documents("trees", "pages")
    uses = [DocumentReuse(two, 1, 1200, 1200, True), DocumentReuse(one, 0, 30, None, False)]
    answer = RagAnswer(
        text="",
        finish_reason="stop",
        messages=[],
        documents=uses,
        counted="estimated",
        prompt_tokens=1300,
        cached_tokens=None,
        completion_tokens=1,
    )
    assert answer.table().splitlines() == [
        "place  rank  tokens  reused  seen  document",
        "    1     2   1,200   1,200   yes  pages",
        "    2     1      30       ?    no  trees",
        "(tokens estimated)",
    ]
    assert (answer.reused_tokens, answer.seen_tokens) == (1200, 1200)
