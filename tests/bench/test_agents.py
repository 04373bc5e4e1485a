"""The replay of dialogues in short: what it counts, and that what can be reused is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import bench.tiny
from bench.agent_templates import KINDS, Kind
from bench.agents import WAYS, begun, common, compared, draw, replayed
from radixserve.model.loader import ModelFiles
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import unpack
from tests.text.tiny import tiny_tokenizer_dir

HANG = 60.0
CALL = {"id": "1", "function": {"name": "look", "arguments": '{"at":"the pier","by":["é",2]}'}}
DIALOGUE: list[dict[str, Any]] = [
    {"role": "system", "content": "You look after the harbour and the ferry."},
    {"role": "user", "content": "hello, who is at the pier?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "the pilot"},
    {"role": "assistant", "content": "hello, it is the pilot who is at the pier."},
    {"role": "user", "content": "hello again"},
    {"role": "assistant", "content": "hello the whole harbour is at the pier."},
]


@pytest.fixture(autouse=True)
def _own_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tiny_tokenizer_dir(tmp_path)
    files = ModelFiles(directory, directory, "tiny")
    monkeypatch.setattr(bench.tiny, "prepare", lambda _: files)


def found(kind: Kind, way: str) -> tuple[dict[str, Any], list[int]]:
    told: list[int] = []
    work = replayed(kind, [DIALOGUE] * 2, **WAYS[way], computes=False, told=told.append)
    return asyncio.run(asyncio.wait_for(work, HANG)), told


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_all_that_a_template_leaves_is_reused_and_with_reasoning_kept_all_that_there_was(
    kind: Kind,
):
    own, told = found(kind, "own tokens")
    assert (own["turns"], told) == (4, [3, 3])
    assert own["of_left"] == own["worst_of_left"] == 1
    assert own["dialogues_below"] == 0
    if kind.hides:
        assert own["of_all"] < 1 or kind.returned
        assert found(kind, "own tokens, reasoning kept")[0]["of_all"] == 1
    else:
        assert own["of_all"] == 1
        # The template spells calls in its own way.
        assert (found(kind, "text alone")[0]["of_all"] < 1) == kind.tools


def test_what_could_be_reused_is_counted_in_the_tokens_of_the_turn_before(tmp_path: Path):
    tokenizer = Tokenizer.load(tmp_path)

    def body(prompt: str, said: str, cached: int) -> dict[str, Any]:
        return {
            "prompt_token_ids": unpack(tokenizer.encode(prompt, add_special_tokens=False)),
            "choices": [{"token_ids": unpack(tokenizer.encode(said, add_special_tokens=False))}],
            "usage": {"prompt_tokens_details": {"cached_tokens": cached}},
        }

    before = body("xyz", "abc", 0)
    assert compared(tokenizer, before, body("xyzaQQ", "", 4)) == {
        "prompt": 6,
        "reused": 4,
        "left": 4,
        "reused_of_left": 4,
        "all": 5,
    }
    assert compared(tokenizer, before, body("xyzabcd", "", 3))["left"] == 5


@pytest.mark.parametrize(
    ("one", "other", "same"), [("", "a", 0), ("abc", "abd", 2), ("ab", "abc", 2), ("b", "a", 0)]
)
def test_common_heads(one: str, other: str, same: int):
    assert common(one.encode(), other.encode()) == same


def test_a_checkpoint_is_gone_on_from_and_another_measurements_is_refused(tmp_path: Path):
    checkpoint = tmp_path / "checkpoint.json"
    fresh = begun(checkpoint, 6, "none")
    assert not any(fresh["kinds"].values())
    fresh["kinds"]["demo model"]["text alone"] = {"turns": 3}
    checkpoint.write_text(json.dumps(fresh), encoding="utf-8")
    assert begun(checkpoint, 6, "none") == json.loads(json.dumps(fresh))
    for dialogues, model in ((7, "none"), (6, "tiny")):
        with pytest.raises(SystemExit, match="another measurement"):
            begun(checkpoint, dialogues, model)


def test_the_picture_shows_what_was_measured(tmp_path: Path):
    run = {"of_left": 1.0, "of_all": 0.9}
    draw({"kinds": {"one": {"text alone": run}, "two": dict.fromkeys(WAYS, run)}}, tmp_path / "a")
    assert (tmp_path / "a.png").stat().st_size > 5000
