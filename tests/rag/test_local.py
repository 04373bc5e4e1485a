"""Questions to a model in this process: order, reuse and its report, to the token."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from radixserve.engine.llm import LLM
from radixserve.errors import ConfigError, InvalidRequestError
from radixserve.rag import Document, Rag
from radixserve.tokens import count
from tests.rag.asked import SETTINGS, documents, order

NAMES = ("trees", "pages", "leases")


def test_the_order_of_the_ranks_is_kept_unless_another_one_is_asked_for(llm: LLM):
    rag = Rag(llm, **SETTINGS)
    rag.ask("What?", documents("trees", "pages"))
    assert order(rag.ask("What?", documents("pages", "trees"))) == ["pages", "trees"]


def test_permuted_documents_are_reused_in_a_stable_order_only(llm: LLM):
    """Without one the report says what there would be to gain."""
    permutations = [documents(*each) for each in itertools.permutations(NAMES)]
    plain = Rag(llm, cache_salt="plain", **SETTINGS)
    stable = Rag(llm, cache_salt="stable", order="cached", **SETTINGS)
    first, *others = [plain.ask(f"Question {n}?", each) for n, each in enumerate(permutations)]
    assert first.seen_tokens == first.reused_tokens == 0
    for answer in others:
        assert answer.seen_tokens == sum(each.tokens for each in answer.documents)
    # The last permutation begins as one before it does, and then goes on in its own way.
    assert others[-1].reused_tokens < others[-1].seen_tokens
    gained = [stable.ask(f"Question {n}?", each) for n, each in enumerate(permutations)]
    for answer in gained[1:]:
        assert order(answer) == order(gained[0])
        assert answer.reused_tokens == answer.seen_tokens > 0
    assert sum(each.reused_tokens for each in gained) > sum(each.reused_tokens for each in others)


def test_the_report_is_exact(llm: LLM):
    rag = Rag(llm, **SETTINGS)
    first = rag.ask("What?", documents("trees", "pages"))
    assert first.counted == "exact"
    assert first.cached_tokens == 0
    again = rag.ask("Why?", documents("trees", "leases"))
    assert [each.seen for each in again.documents] == [True, False]
    tokens = [each.tokens for each in again.documents]
    prompt = llm.tokenizer.encode_chat(again.messages)
    content = again.messages[0]["content"]
    up_to = content.index(documents("leases")[0].text)
    rendered = llm.tokenizer.render_chat(again.messages)
    whole = rendered[: rendered.index(content) + len(content)]
    before = again.cached_tokens - again.reused_tokens
    assert before + sum(tokens) == count(llm.tokenizer.encode(whole, add_special_tokens=False))
    assert again.prompt_tokens == count(prompt)
    # All of the first document, and of the second the words that layouts put in front of each.
    assert again.documents[0].reused == tokens[0]
    assert 0 < again.documents[1].reused < tokens[1] - len("Whoever holds a lease")
    assert up_to


def test_letters_of_several_bytes_are_counted_right(llm: LLM):
    rag = Rag(llm, order="cached", **SETTINGS)
    trees = Document("나무", "나무에는 마디가 있고, 뿌리만 부모가 없다. 🌳")
    for question in ("누가?", "왜?"):
        answer = rag.ask(question, [trees, *documents("pages")])
    assert [each.reused for each in answer.documents] == [each.tokens for each in answer.documents]
    heading = "\n\nDocument: 나무\n" + trees.text
    assert answer.documents[0].tokens <= len(heading.encode())
    assert answer.documents[0].tokens > len(heading)


def test_what_was_evicted_is_not_followed_for_ever(llm: LLM):
    rag = Rag(llm, order="cached", **SETTINGS)
    rag.ask("What?", documents("trees", "pages"))
    llm.reset_prefix_cache()
    answer = rag.ask("What?", documents("pages", "trees"))
    assert order(answer) == ["trees", "pages"], "nobody could know"
    assert answer.reused_tokens == 0
    llm.reset_prefix_cache()
    rag.ask("What?", documents("leases", "salts"))
    assert rag.ask("Who?", documents("salts", "leases")).reused_tokens > 0


def test_a_changed_text_under_an_old_id_is_a_new_document(llm: LLM):
    rag = Rag(llm, order="cached", **SETTINGS)
    old, other = documents("trees", "pages")
    rag.ask("What?", [old, other])
    changed = Document(old.id, "Something else.", old.title)
    answer = rag.ask("What?", [other, changed])
    assert order(answer) == ["pages", "trees"]
    assert [each.seen for each in answer.documents] == [True, False]


def test_tasks_ask_together_and_are_answered_as_alone(llm: LLM):
    rag = Rag(llm, order="cached", **SETTINGS)
    alone = rag.ask("What?", documents(*NAMES)).text

    async def together() -> list[str]:
        asked = (rag.aask("What?", documents(*each)) for each in itertools.permutations(NAMES))
        return [answer.text for answer in await asyncio.gather(*asked)]

    assert asyncio.run(together()) == [alone] * 6


def test_too_long_documents_are_refused_with_what_to_do(llm: LLM):
    rag = Rag(llm, **SETTINGS)
    long = Document("huge", "word " * 600)
    with pytest.raises(InvalidRequestError, match=r"Pass fewer or shorter ones.*'huge'") as caught:
        rag.ask("What?", [*documents("trees"), long])
    assert (caught.value.param, caught.value.code) == ("documents", "context_length_exceeded")
    assert rag.ask("What?", documents("trees")).text


def test_settings_that_do_not_exist_or_cannot_work_are_refused(llm: LLM):
    with pytest.raises(InvalidRequestError, match="max_token"):
        Rag(llm, max_token=3).ask("What?", documents("trees"))
    with pytest.raises(InvalidRequestError, match="temperature"):
        Rag(llm).ask("What?", documents("trees"), temperature=-1)
    with pytest.raises(ConfigError, match="rank, cached"):
        Rag(llm, order="best")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="an LLM, not int"):
        Rag(5)  # type: ignore[arg-type]
    for wrong in ({"max_shift": 1}, {"order": "cached", "max_shift": -1}):
        with pytest.raises(ConfigError, match="max_shift"):
            Rag(llm, **wrong)


def test_a_conversation_grows_out_of_what_is_cached(llm: LLM):
    rag = Rag(llm, order="cached", **SETTINGS)
    turns = [("What?", ("trees",)), ("Why?", ("pages", "trees")), ("So?", ()), ("Who?", ("salts",))]
    history, before = [], 0
    for number, (question, names) in enumerate(turns):
        answer = rag.ask(question, documents(*names), history=history)
        assert answer.cached_tokens >= before, f"turn {number} parts from what was sent before"
        assert answer.messages[: len(history)] == history
        history, before = answer.history, answer.prompt_tokens
    assert [each.document.id for each in answer.documents] == ["salts"]
    assert answer.counted == "exact"
    assert sum("A tree has nodes" in message["content"] for message in history) == 1
    assert [message["role"] for message in history] == [
        "system",
        *["user", "assistant"] * len(turns),
    ]


def test_whoever_keeps_the_bare_questions_starts_over_at_the_first_turn(llm: LLM):
    """The documents of an earlier turn are part of it: without them nothing behind is reused."""
    rag = Rag(llm, **SETTINGS)
    first = rag.ask("What?", documents("trees"))
    second = rag.ask("Why?", documents("pages"), history=first.history)
    bare = [*second.history]
    bare[3] = {"role": "user", "content": "Why?"}
    kept = rag.ask("So?", [], history=second.history)
    parted = rag.ask("So?", [], history=bare)
    assert kept.cached_tokens >= second.prompt_tokens
    assert first.prompt_tokens <= parted.cached_tokens < second.prompt_tokens


@pytest.mark.parametrize(
    ("history", "param"),
    [
        (5, "history"),
        ("text", "history"),
        ({"role": "user", "content": "x"}, "history"),
        (["text"], "history[0]"),
        ([{"role": "user", "content": "x"}, {"role": "assistant"}], "history[1]"),
        ([{"content": "x"}], "history[0]"),
    ],
)
def test_a_history_that_is_none_is_refused(llm: LLM, history: Any, param: str):
    with pytest.raises(InvalidRequestError, match="history of an earlier answer") as caught:
        Rag(llm).ask("What?", documents("trees"), history=history)
    assert caught.value.param == param
