"""The benchmark of retrieval in short: what it asks, what it finds, and what it says of it."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path

import pytest

from bench import rag
from bench.passages import FACTS, HOT, HOT_SHARE, Retriever, chunks, questions


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture(scope="module")
def retriever() -> Retriever:
    return Retriever(chunks(words, 150))


def test_chunks_are_the_whole_of_every_topic(retriever: Retriever):
    texts: dict[str, str] = {}
    for each in retriever.documents:
        texts[each.title] = texts.get(each.title, "") + each.text
        assert words(each.text) <= 150
    assert {name: text.split() for name, text in texts.items()} == {
        name: text.split() for name, text in pydoc_data.topics.topics.items()
    }
    assert len({each.id for each in retriever.documents}) == len(retriever.documents)


def test_a_sentence_finds_the_chunk_that_it_is_from(retriever: Retriever):
    asked = questions(retriever.documents, 50)
    found = [" ".join(retriever.top(each, 1)[0].text.split()) for each in asked]
    assert sum(each in text for each, text in zip(asked, found, strict=True)) > 40


def test_three_topics_take_most_of_the_questions(retriever: Retriever):
    texts = (" ".join(text.split()) for text in pydoc_data.topics.topics.values())
    hot = sorted(texts, key=len)[-HOT:]
    asked = questions(retriever.documents, 400)
    # Some sentences of other topics are in these too.
    share = sum(any(each in text for text in hot) for each in asked) / len(asked)
    assert HOT_SHARE - 0.1 < share < HOT_SHARE + 0.25
    assert questions(retriever.documents, 400) == asked
    assert all(len(retriever.top(each, rag.K)) == rag.K for each in asked)


def test_every_known_answer_is_in_the_chunks_that_are_found(retriever: Retriever):
    for fact in FACTS:
        found = " ".join(each.text for each in retriever.top(fact.question, rag.K)).lower()
        assert any(each in found for each in fact.expected), fact.question


def row(prompt: int, cached: int) -> rag.Numbers:
    return {"prompt": prompt, "cached": cached, "seen": 60}


def said(text: str, *, right: bool) -> rag.Numbers:
    return {"text": text, "right": right, "moved": text == "no", "seconds": 1.0}


@pytest.fixture
def results() -> rag.Numbers:
    found = {
        "chunks": 5,
        "traffic": {
            "requests": {
                "rank": [row(100, 0), row(100, 40), row(100, 90)],
                "cached": [row(100, 0), row(100, 80)],
            }
        },
        "answers": [
            {
                "rank": said("yes", right=True),
                "cached": said("no", right=False),
                "reverse": said("yes", right=True),
            }
        ],
    }
    found["summary"] = rag.summary(found)
    return found


def test_only_what_both_orders_were_asked_is_compared(results: rag.Numbers):
    shown = results["summary"]
    assert shown["requests"] == 2
    assert shown["hit_tokens"] == {"rank": 40, "cached": 80}
    assert shown["gain"] == 2.0
    assert shown["hit_rate"] == {"rank": 0.2, "cached": 0.4}
    assert shown["seen_rate"] == 0.6
    assert shown["right"] == {"rank": 1, "cached": 0, "reverse": 1}
    assert shown["same_text"] == {"cached": 0, "reverse": 1}
    [requirement] = rag.requirements(results)
    assert requirement["met"] is True


def test_what_was_not_measured_is_not_met(results: rag.Numbers):
    empty = {"summary": rag.summary({})}
    assert rag.requirements(empty)[0]["met"] is None
    results["traffic"]["requests"]["cached"] = [row(100, 40), row(100, 19)]
    results["summary"] = rag.summary(results)
    assert rag.requirements(results)[0]["met"] is False


def test_it_is_drawn_whole_and_in_part(tmp_path: Path, results: rag.Numbers):
    assert rag.draw(results, tmp_path / "whole").stat().st_size > 0
    assert rag.draw({"chunks": 0, "summary": {}}, tmp_path / "nothing").stat().st_size > 0
