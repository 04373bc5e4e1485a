from __future__ import annotations

import json
import random
import unicodedata
from itertools import pairwise
from typing import Any

import pytest

from radixserve.explain.fingerprints import CHARACTERS, HEAD, MOST, RUN, VALUES, fingerprints

RULES = "You help people who live by the sea. Be brief and kind to whoever asks, day and night."
OTHERS = "Sing a song of sixpence, a pocket full of rye, and no more of it than anybody asks for."
KOREAN = "피오르는 빙하가 깎아 만든 골짜기에 바닷물이 들어와서 생긴 좁고 긴 만이다."
THAI = "ผู้ช่วยที่เป็นมิตรสำหรับผู้คนที่อาศัยอยู่ริมทะเล"
FRENCH = "Le fjord est une vallée étroite où la mer est entrée après la fonte du glacier."
ARGUMENTS = {"path": "sea.py", "content": "def tide(hour): return low if hour % 12 < 6 else high"}
TOOL = {"type": "function", "function": {"name": "look", "description": RULES}}


def chat(system: str, user: str = "Why?", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"messages": messages, **fields}


def words(seed: object, characters: int) -> str:
    chance = random.Random(f"{seed}")
    letters = "abcdefghijklmnopqrstuvwxyz"
    return "".join(chance.choice(letters) + " " * (not at % 6) for at in range(characters))


def related(earlier: dict[str, Any], later: dict[str, Any]) -> bool:
    return not set(fingerprints(earlier)).isdisjoint(fingerprints(later))


def used(value: dict[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": value}]}]}


def call(arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"function": {"name": "write", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (chat(f"It is 12:04. {RULES}"), chat(f"It is 12:05. {RULES}", "How?")),
        (chat(RULES), chat("Anna asks.", RULES)),
        (chat(RULES), chat(RULES.replace(" ", "  "))),
        (chat(RULES), chat(RULES.replace(" ", "\n\n"))),
        (chat(RULES), chat(RULES.replace(" ", "\u200b \u00ad"))),
        (chat("Hi", "What is a fjord?"), chat("Hi", "In brief: What is a fjord?")),
        (chat(RULES, tools=[TOOL]), chat(RULES * 40)),
        ({"prompt": RULES}, chat(RULES)),
        ({"prompt": [1, RULES]}, chat(RULES)),
        ({"prompt": RULES}, {"instructions": RULES, "input": "Go."}),
        (chat("", documents=[{"title": RULES}]), chat("", documents=[{"title": RULES}, "more"])),
        ({"messages": [call(json.dumps(ARGUMENTS))]}, {"messages": [{}, call(str(ARGUMENTS))]}),
        (
            {"input": [{"type": "function_call_output", "output": RULES}]},
            {"input": "Now?", "instructions": [{"type": "input_text", "text": RULES}]},
        ),
        (used(ARGUMENTS), used({"path": "tide.py", **ARGUMENTS})),
    ],
)
def test_what_says_something_of_the_same_is_related(earlier: dict[str, Any], later: dict[str, Any]):
    assert related(earlier, later)
    assert related(later, earlier)


@pytest.mark.parametrize(
    "text", [KOREAN, THAI, FRENCH, "ｆｕｌｌ　ｗｉｄｔｈ　ｌｅｔｔｅｒｓ　ｏｆ　１９８４"]
)
@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_what_looks_the_same_is_related(text: str, form: str):
    other = unicodedata.normalize(form, text)
    assert related(chat(f"\ufeff{text}"), chat(f"1. {other}"))
    assert fingerprints(chat(text)) == fingerprints(chat(other))


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (chat(RULES), chat(OTHERS)),
        (chat(RULES * 100), chat(OTHERS * 100)),
        (chat(RULES * 2), chat(OTHERS + RULES[: RUN - 8])),
        (chat(KOREAN), chat(RULES)),
        (chat(KOREAN), chat(THAI)),
        (chat(f"Is it? {OTHERS * 2}"), chat("Is it by the sea?")),
        (chat("Is it a fjord?"), chat("Is it by the sea?")),
        ({"prompt": "a"}, {"prompt": "b"}),
        ({"prompt": list(range(100))}, {"prompt": list(range(100))}),
        ({"prompt": [[None] * VALUES, RULES]}, {"prompt": RULES}),
        ({"prompt": "a" * CHARACTERS + RULES}, {"prompt": RULES}),
        ({"messages": [{"role": "assistant"}] * 9}, {"messages": [{"role": "assistant"}] * 9}),
        ({"messages": [3, None], "tools": 5}, {"messages": True, "prompt": "\ud800"}),
        ({}, {}),
    ],
)
def test_what_says_nothing_of_the_same_is_not(earlier: dict[str, Any], later: dict[str, Any]):
    assert not related(earlier, later)
    assert not related(later, earlier)


@pytest.mark.parametrize("size", [100, 1000, 10_000, 100_000])
def test_a_fiftieth_in_common_is_found_wherever_it_stands(size: int):
    for seed in range(20):
        common = words(f"common {seed}", max(2 * RUN, size // 50))
        place = random.Random(seed).randrange(size)
        one, other = words(f"one {seed}", size), words(f"other {seed}", size)
        assert not related(chat(one), chat(other))
        assert related(chat(one[:place] + common + one[place:]), chat(common + other))
        assert related(chat(one[:place] + common + one[place:]), chat(other + common))


def test_a_sentence_at_the_beginning_of_both_is_found_however_long_they_are():
    for seed in range(20):
        texts = (f"{number} {RULES} {words((number, seed), 50_000)}" for number in (7, 12))
        assert related(*map(chat, texts))


def test_no_more_is_kept_of_a_long_text():
    found = [len(fingerprints({"prompt": words(3, size)})) for size in (500, 50_000, 500_000)]
    assert found[0] < 500
    assert all(abs(each - HEAD - MOST) < MOST / 4 for each in found[1:])


def test_hashes_differ_if_one_byte_does():
    text = "abcdefghijklmnopqrstuvwxyz"[:RUN]
    changed = [text[:at] + "0" + text[at + 1 :] for at in range(RUN)]
    swapped = [text[:a] + text[b] + text[a] + text[b + 1 :] for a, b in pairwise(range(RUN))]
    assert related({"prompt": text}, {"prompt": f"1 {text} 2"})
    whole = fingerprints({"prompt": text})[0]
    assert not any(whole in fingerprints({"prompt": each}) for each in (*changed, *swapped))


def test_marks_without_end_hold_nothing_up():
    marks = "\u0300\u0315\u0323" * 300_000
    assert related(chat(f"A {RULES} {marks}"), chat(RULES))


def test_values_nested_without_end_are_read():
    value: Any = RULES
    for _ in range(5000):
        value = [{"text": value}]
    assert related(chat("", tools=[{"parameters": value}]), chat(RULES))
