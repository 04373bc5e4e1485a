"""What is shared, what is lost at the ends of pages, and what caches of a size would hit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from radixserve.lint.analysis import Analysis
from radixserve.lint.logs import Faults, read
from radixserve.lint.tokens import Exact
from radixserve.text.tokenizer import Tokenizer
from tests.lint.logs import RULES, chat, linted, write
from tests.text.tiny import HERMES, tiny_tokenizer_dir


def prompt(text: str) -> dict[str, str]:
    return {"prompt": text}


def test_four_bytes_are_a_token_and_the_last_one_is_always_computed(tmp_path: Path):
    report = linted(tmp_path, [prompt("a" * 100), prompt("a" * 100)], page_size=16)
    assert (report.requests, report.tokens) == (2, 50)
    assert report.shared.tokens == 24
    assert (report.shared.whole_pages, report.shared.at_boundaries) == (16, 8)
    assert report.shared.share == pytest.approx(24 / 50)


def test_what_is_shared_is_what_a_scan_of_all_earlier_prompts_finds(tmp_path: Path):
    drawn = random.Random(5)
    prompts: list[str] = []
    for _ in range(60):
        stem = drawn.choice(prompts) if prompts and drawn.random() < 0.8 else ""
        stem = stem[: 4 * drawn.randint(0, len(stem) // 4)]
        prompts.append(stem + "".join(drawn.choices("abcd", k=4 * drawn.randint(1, 30))))
    report = linted(tmp_path, list(map(prompt, prompts)), page_size=8)
    shared = pages = 0
    for place, text in enumerate(prompts):
        most = max((_common(text, other) for other in prompts[:place]), default=0)
        most = min(most, len(text) // 4 - 1)
        shared += most
        pages += most - most % 8
    assert (report.shared.tokens, report.shared.whole_pages) == (shared, pages)
    assert report.hit_rates.least_recently_used[-1] == pytest.approx(report.shared.share)
    for curve in (report.hit_rates.least_recently_used, report.hit_rates.optimum):
        assert curve == sorted(curve)
    assert all(
        least <= best + 1e-9
        for least, best in zip(
            report.hit_rates.least_recently_used, report.hit_rates.optimum, strict=True
        )
    )


def _common(one: str, other: str) -> int:
    """Tokens of four characters."""
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    return common // 4


def test_salts_and_models_keep_prompts_apart(tmp_path: Path):
    bodies = [{**prompt("a" * 100), "cache_salt": salt} for salt in ("one", "other", "one")]
    assert linted(tmp_path, bodies).shared.tokens == 24


@pytest.fixture
def exact(tmp_path: Path) -> Exact:
    """One token a byte, and a template with tools, without the ids of calls."""
    directory = tiny_tokenizer_dir(tmp_path / "model", chat_template=HERMES)
    return Exact(Tokenizer.load(directory), "tiny")


def test_a_models_own_template_and_tokenizer_say_what_is_shared(tmp_path: Path, exact: Exact):
    bodies = [chat("Be kind.", "Who?"), chat("Be kind.", "Why?")]
    report = linted(tmp_path, bodies, tokens=exact)
    assert report.counted == "those of tiny"
    # Merges of the tokenizer make fewer tokens than characters.
    assert 20 < report.shared.tokens <= len("<system>Be kind.<user>Wh")


def test_settings_of_the_template_are_heeded_and_marks_are_not_rendered(
    tmp_path: Path, exact: Exact
):
    tool = {"type": "function", "function": {"name": "f", "description": RULES}}
    mark = {"cache_control": {"type": "ephemeral"}}
    body = {"messages": [{"role": "user", "content": RULES}], "tools": [tool]}
    marked = {"messages": [{**body["messages"][0], **mark}], "tools": [{**tool, **mark}]}
    report = linted(tmp_path, [body, marked], tokens=exact)
    assert report.shared.tokens == report.tokens / 2 - 1
    directory = tiny_tokenizer_dir(tmp_path / "styled", chat_template="{{ style }}" + HERMES)
    styled = Exact(Tokenizer.load(directory), "styled")
    bodies = [{**body, "chat_template_kwargs": {"style": style}} for style in ("curt", "wordy")]
    assert linted(tmp_path, bodies, tokens=styled).shared.tokens == 0


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": 5}]},
            r"messages\.0\.tool_calls must be a list",
        ),
        ({"messages": [{"role": "user", "content": "x"}], "system": [5]}, "Expected `object`"),
    ],
)
def test_what_a_server_would_refuse_is_left_out(
    tmp_path: Path, exact: Exact, body: dict[str, Any], why: str
):
    [request] = read(write(tmp_path / "log.jsonl", [body]), Faults())
    with pytest.raises(ValueError, match=why):
        Analysis(exact, 16).add(request)


def test_ids_that_the_template_leaves_out_cost_nothing(tmp_path: Path, exact: Exact):
    def agent(name: str) -> dict[str, object]:
        call = {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        return {
            "messages": [
                {"role": "system", "content": RULES},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": name, "content": RULES},
            ]
        }

    bodies = [agent("call_a1b2c3d4e5"), agent("call_f6a7b8c9d0")]
    assert linted(tmp_path, bodies).spots[0].ids_only
    report = linted(tmp_path, bodies, tokens=exact)
    assert report.spots == []
    assert report.shared.tokens == report.tokens / 2 - 1


def test_anthropics_requests_are_rendered_as_the_server_does(tmp_path: Path, exact: Exact):
    body = {
        "system": "Be kind.",
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "Go."},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "1", "content": "Ok"}],
            },
        ],
    }
    report = linted(tmp_path, [body, body], tokens=exact)
    assert report.shared.tokens == report.tokens / 2 - 1


def test_a_short_answer_that_others_give_too_hides_no_clock(tmp_path: Path):
    """Two applications take turns, and users say the same few words to both."""
    bodies = []
    for number in range(40):
        front = RULES[::-1] if number % 2 else f"It is 12:04:{number + 10}.\n{RULES}"
        bodies.append(chat(front, ("yes", "continue", "thanks")[number % 3]))
    [spot] = linted(tmp_path, bodies).spots
    assert (spot.guess, spot.pointer) == ("timestamp", "/messages/0/content")
    assert spot.requests == 19
    assert spot.tokens > 19 * len(RULES) / 4 * 0.99
