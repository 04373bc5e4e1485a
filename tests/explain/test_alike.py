from __future__ import annotations

import unicodedata
from typing import Any

import pytest

from radixserve.explain.alike import SAMPLE, alike, related, said

RULES = "You help people who live by the sea. Be brief and kind to whoever asks, day and night."
QUESTION = "What is a fjord?"
TOOL = {"type": "function", "function": {"name": "look", "description": RULES}}


def chat(system: str, user: str = QUESTION, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"messages": messages, **fields}


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (chat(f"Anna asks. {RULES}"), chat(f"Karl asks. {RULES}", "Why?")),
        (chat(RULES), chat(RULES, tools=[TOOL])),
        (chat(RULES, tools=[TOOL]), chat(RULES)),
        (chat(f"Anna asks. {RULES}"), chat(RULES)),
        ({"prompt": f"Anna: {RULES}"}, {"prompt": f"Karl: {RULES}"}),
        ({"system": RULES, **chat("Anna")}, {"system": RULES, **chat("Karl")}),
    ],
)
def test_what_is_mostly_the_same_is_alike(earlier: dict[str, Any], later: dict[str, Any]):
    assert alike(earlier, later)
    assert alike(later, earlier)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (chat(RULES), chat("Sing a song of sixpence, a pocket full of rye, and no more of it.")),
        (chat("Hi"), chat("Hi", "Why?")),
        ({}, {}),
        ({"prompt": [1, 2, 3]}, {"prompt": [1, 2, 4]}),
        ({"messages": [3], "tools": 5}, {"messages": None}),
    ],
)
def test_what_has_little_in_common_is_not(earlier: dict[str, Any], later: dict[str, Any]):
    assert not alike(earlier, later)
    assert not alike(later, earlier)


KOREAN = "피오르는 빙하가 깎아 만든 골짜기에 바닷물이 들어와서 생긴 좁고 긴 만이다. "
OTHERS = "Sing a song of sixpence, a pocket full of rye, and no more of it than anybody asks for."


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (chat(f"It is 12:04. {RULES}"), chat(f"It is 12:05. {RULES}", "Why?")),
        (chat(RULES), chat("Anna asks.", RULES)),
        (chat(RULES), chat(RULES.replace(" ", "  "))),
        (chat(RULES), chat(RULES.replace(" ", "\n\n"))),
        (chat(KOREAN), chat(unicodedata.normalize("NFD", KOREAN))),
        (chat(RULES, tools=[TOOL]), chat(RULES * 40)),
        (chat(OTHERS * 400 + RULES), chat(OTHERS * 400)),
        (chat("Hi", "Why?"), chat("Hi", "Why?")),
        (chat("Hi", f"In brief: {QUESTION}"), chat("Hi", f"{QUESTION} Please.")),
        ({"prompt": RULES}, chat(RULES)),
        ({}, {}),
    ],
)
def test_what_says_something_of_the_same_is_related(earlier: dict[str, Any], later: dict[str, Any]):
    assert related(said(earlier), said(later))
    assert related(said(later), said(earlier))


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (chat(RULES), chat(OTHERS)),
        (chat(RULES * 100), chat(OTHERS * 100)),
        (chat(RULES), chat(OTHERS + RULES[: SAMPLE - 8])),
        ({"prompt": "a"}, {"prompt": "b"}),
        (chat(KOREAN), chat(RULES, "Why?")),
    ],
)
def test_what_says_nothing_of_the_same_is_not(earlier: dict[str, Any], later: dict[str, Any]):
    assert not related(said(earlier), said(later))
    assert not related(said(later), said(earlier))
