"""What varies in front of text that does not: named, located, and priced."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from radixserve.lint import spots
from radixserve.lint.parts import Part, parts
from tests.lint.logs import RULES, chat, linted, tool


def test_a_clock_in_the_system_prompt_is_named_with_all_that_it_costs(tmp_path: Path):
    bodies = [
        chat(f"You help. It is 2026-11-30 12:{minute}:17.\n{RULES}", f"Question {minute}?")
        for minute in range(10, 30)
    ]
    report = linted(tmp_path, bodies)
    spot = report.spots[0]
    assert (spot.guess, spot.pointer, spot.role) == ("timestamp", "/messages/0/content", "system")
    assert spot.example.message == 0
    assert spot.requests == 19
    # All of the rules, in each request but the first.
    assert spot.tokens == pytest.approx(19 * len(RULES) / 4, rel=0.03)
    assert spot.milliseconds == pytest.approx(spot.tokens / 5000 * 1000)
    assert report.shared.share < 0.05
    assert report.suggestion is not None
    [system, user] = report.suggestion.messages
    assert RULES in system["content"]
    assert "2026" not in system["content"]
    assert user["content"] == "{{ time }}\n\n{{ question }}"
    assert "12:" in report.suggestion.varying["time"]


def test_a_clock_is_found_however_long_the_conversation(tmp_path: Path):
    turns: list[str] = []
    bodies = []
    for number in range(12):
        turns.append(f"Question {number}: " + "what next? " * 20)
        bodies.append(chat(f"Now 12:{10 + number}.\n{RULES}", *turns))
        turns.append(f"Answer {number}: " + "go on. " * 20)
    report = linted(tmp_path, bodies)
    assert report.spots[0].guess == "timestamp"
    lost = sum(spot.tokens for spot in report.spots)
    assert lost / report.tokens > 0.75, "history and rules both stand behind the clock"
    assert report.suggestion is not None
    assert {"role": "...", "content": "{{ history }}"} in report.suggestion.messages


def test_a_shuffled_list_of_tools_is_named(tmp_path: Path):
    tools = [tool(f"tool_{number}") for number in range(20)]
    drawn = random.Random(7)
    bodies = []
    for number in range(10):
        bodies.append(chat(RULES, f"Question {number}", tools=tools))
        drawn.shuffle(tools)
    report = linted(tmp_path, bodies)
    spot = report.spots[0]
    assert spot.guess == "tool_order"
    assert spot.pointer.startswith("/tools/")
    assert "--canonical tools" in spot.advice
    assert report.suggestion is not None
    assert report.suggestion.tools == "sorted by name"
    assert spot.tokens > 0.5 * report.tokens


def test_keys_in_another_order_are_named(tmp_path: Path):
    bodies = []
    for number in range(6):
        properties = {"from": {"type": "string"}, "to": {"type": "string"}}
        if number % 2:
            properties = dict(reversed(properties.items()))
        bodies.append(chat(RULES, f"Question {number}", tools=[tool("fly", **properties)]))
    spots = linted(tmp_path, bodies[:2]).spots
    assert spots[0].guess == "key_order"
    # Both orders are known from the third request on: nothing is computed again.
    assert linted(tmp_path, bodies).spots[0].requests == 1


def agent(ids: list[str]) -> dict[str, Any]:
    """A conversation with a call in every turn."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": RULES}]
    for number, name in enumerate(ids):
        call = {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages += [
            {"role": "user", "content": f"Question {number}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": name, "content": f"Result {number} " * 20},
        ]
    return {"model": "m", "messages": messages}


def test_ids_of_calls_that_are_made_anew_in_each_turn_are_flagged(tmp_path: Path):
    drawn = random.Random(7)

    def fresh(count: int) -> list[str]:
        return [f"call_{uuid.UUID(int=drawn.getrandbits(128)).hex}" for _ in range(count)]

    report = linted(tmp_path, [agent(fresh(turn)) for turn in range(1, 8)])
    assert report.spots[0].ids_only
    assert "ids of calls" in report.spots[0].advice
    assert all(spot.ids_only for spot in report.spots)


def test_what_the_places_cost_adds_up_to_what_is_lost(tmp_path: Path):
    drawn = random.Random(7)
    kept = [f"call_{drawn.getrandbits(96):024x}" for _ in range(8)]
    best = linted(tmp_path, [agent(kept[:turn]) for turn in range(1, 8)])
    fresh = [
        agent([f"call_{drawn.getrandbits(96):024x}" for _ in range(turn)]) for turn in range(1, 8)
    ]
    report = linted(tmp_path, fresh)
    lost = best.shared.tokens - report.shared.tokens
    assert sum(spot.tokens for spot in report.spots) == pytest.approx(lost, rel=0.2)
    assert max(spot.requests for spot in report.spots) <= 6


def test_ids_that_come_back_as_they_were_are_no_divergence(tmp_path: Path):
    ids = [f"call_{number}" for number in range(8)]
    report = linted(tmp_path, [agent(ids[:turn]) for turn in range(1, 8)])
    assert report.spots == []
    assert report.shared.share > 0.75


HISTORY = [f"Turn {number}: " + "we look at the flight again. " * 30 for number in range(20)]


def test_a_summary_that_is_asked_for_behind_the_history_reuses_all_of_it(tmp_path: Path):
    before = linted(tmp_path, [chat(RULES, *HISTORY)])
    report = linted(tmp_path, [chat(RULES, *HISTORY), chat(RULES, *HISTORY, "Sum it up.")])
    assert report.shared.tokens >= 0.95 * before.tokens
    assert report.spots == []


def test_a_summary_with_a_prompt_of_its_own_costs_all_of_the_history(tmp_path: Path):
    summary = chat("You sum up what was said.", *HISTORY, "Sum it up.")
    report = linted(tmp_path, [chat(RULES, *HISTORY), summary])
    [spot] = report.spots
    assert spot.pointer == "/messages/0/content"
    assert spot.tokens == pytest.approx(sum(map(len, HISTORY)) / 4, rel=0.05)
    [first, second] = report.heads
    assert first.hash != second.hash
    assert second.parts_from_last is not None
    assert second.parts_from_last.role == "system"


def test_history_that_is_cut_from_the_front_is_named(tmp_path: Path):
    bodies = [chat(RULES, *HISTORY[start : start + 11]) for start in range(0, 8, 2)]
    report = linted(tmp_path, bodies)
    assert report.spots[0].guess == "message_removed"
    assert report.spots[0].pointer == "/messages/*"
    assert "summarize" in report.spots[0].advice


def test_a_restart_that_builds_the_prompt_otherwise_shows_as_another_beginning(tmp_path: Path):
    before = [chat(RULES, f"Question {number}") for number in range(5)]
    after = [chat(RULES.replace("as kind", "as  kind"), f"Question {n}") for n in range(5, 8)]
    report = linted(tmp_path, before + after)
    assert [head.requests for head in report.heads] == [5, 3]
    second = report.heads[1]
    assert second.first.endswith("line 6")
    assert second.parts_from_last is not None
    assert second.parts_from_last.guess == "whitespace"


def test_another_model_shares_nothing_and_is_another_beginning(tmp_path: Path):
    body = chat(RULES, "Question")
    report = linted(tmp_path, [body, {**body, "model": "n"}, body])
    assert [head.model for head in report.heads] == ["m", "n"]
    assert report.shared.share == pytest.approx(1 / 3, abs=0.01)
    assert report.spots == []


def test_a_question_in_front_of_the_documents_is_named(tmp_path: Path):
    documents = "\n\n".join(f"Document {n}: " + "all about it. " * 40 for n in range(5))
    bodies = [
        {"messages": [{"role": "user", "content": f"{question}?\n\n{documents}"}]}
        for question in ("Who", "Why", "When", "Where")
    ]
    report = linted(tmp_path, bodies)
    assert report.spots[0].pointer == "/messages/0/content"
    assert report.spots[0].tokens > 0.7 * report.tokens * 3 / 4


def test_conversations_that_only_share_their_system_prompt_have_nothing_that_varies(
    tmp_path: Path,
):
    drawn = random.Random(3)
    words = ["flight", "seat", "meal", "bag", "change", "please", "date", "refund", "name"]
    bodies = [
        chat(RULES, *(" ".join(drawn.choices(words, k=30)) for _ in range(turns)))
        for _ in range(10)
        for turns in (1, 3)
    ]
    report = linted(tmp_path, bodies)
    assert sum(spot.tokens for spot in report.spots) < 0.01 * report.tokens


def test_one_request_cannot_vary(tmp_path: Path):
    report = linted(tmp_path, [chat(RULES, "Question")])
    assert (report.spots, report.shared.tokens, report.suggestion) == ([], 0, None)


def test_marks_for_caches_are_no_part_of_the_prompt(tmp_path: Path):
    part = {"type": "text", "text": RULES}
    marked = {**part, "cache_control": {"type": "ephemeral"}}
    bodies = [{"messages": [{"role": "user", "content": [each]}]} for each in (part, marked)]
    report = linted(tmp_path, bodies)
    assert report.spots == []
    assert report.shared.share > 0.49


def test_of_many_messages_that_say_the_same_each_is_compared_with_the_one_in_its_place():
    """Looking for the best ones among all pairs would take minutes."""

    def conversation(kinds: int) -> list[Part]:
        turns = [{"role": "user", "content": f"Turn {turn % kinds}."} for turn in range(4000)]
        return list(parts({"messages": [*turns, {"role": "user", "content": RULES}]}))

    keys = spots.keys(conversation(7), conversation(5))
    assert [len(set(each)) for each in keys] == [4001, 4001]
    found = spots.varying(conversation(7), conversation(5))
    assert found[-1].again >= len(RULES)
