from __future__ import annotations

from typing import Any

import pytest

from radixserve.explain.alike import alike

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
