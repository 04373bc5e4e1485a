from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bench import traces
from bench.workloads import shared_tokens


def session(name: str, *, common: int, adds: list[tuple[int, list[int]]]) -> dict[str, object]:
    calls = [
        {"in": 64, "out": 640, "think_time": 10.0, "keep": keep, "add": add} for keep, add in adds
    ]
    return {
        "id": name,
        "tool_tokens": common * 64 - 32,
        "system_tokens": 32,
        "requests": [{"type": "subagent"}, *calls],
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    sessions = [
        session("a", common=2, adds=[(0, [1, 2, 3, 4]), (3, [5, 6])]),
        session("b", common=2, adds=[(0, [1, 2, 3]), (3, [4])]),
        session("long", common=2, adds=[(0, list(range(100)))]),
    ]
    (tmp_path / "agents").mkdir()
    with gzip.open(tmp_path / "agents/coding_sessions.jsonl.gz", "wt") as lines:
        lines.writelines(json.dumps(each) + "\n" for each in sessions)
    chat = [
        {"timestamp": 5000, "input_length": 700, "output_length": 100, "hash_ids": [0, 1]},
        {"timestamp": 7000, "input_length": 900, "output_length": 512, "hash_ids": [0, 2]},
        {"timestamp": 9000, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 3]},
    ]
    (tmp_path / "mooncake").mkdir()
    lines = "".join(json.dumps(each) + "\n" for each in chat)
    (tmp_path / "mooncake/conversation_trace.jsonl").write_text(lines)
    return tmp_path


def test_an_agent_keeps_the_head_of_its_last_prompt(data: Path) -> None:
    workload = traces.agents(data, sessions=1, requests=9, block=4, longest=99, pace=0.1)
    first, second = workload.conversations[0].turns

    assert (len(first.prompt), len(second.prompt)) == (16, 20)
    assert shared_tokens([first.prompt, second.prompt]) == [0, 12]


def test_agents_share_their_tools_and_system_prompt_and_no_more(data: Path) -> None:
    workload = traces.agents(data, sessions=2, requests=9, block=4, longest=99, pace=0.1)
    one, other = (each.turns[0].prompt for each in workload.conversations)

    assert shared_tokens([one, other]) == [0, 8]


def test_agents_think_before_every_request_but_the_first(data: Path) -> None:
    workload = traces.agents(data, sessions=1, requests=9, block=4, longest=99, pace=0.1)

    assert [turn.pause for turn in workload.turns] == [0.0, 1.0]
    assert [turn.output for turn in workload.turns] == [40, 40]


def test_sessions_that_do_not_fit_are_left_out(data: Path) -> None:
    workload = traces.agents(data, sessions=9, requests=9, block=1, longest=20, pace=0.1)

    assert len(workload.conversations) == 2


def test_chat_prompts_have_their_scaled_lengths_and_shared_blocks(data: Path) -> None:
    workload = traces.chat_trace(data, requests=9, block=64, longest=999, rate=1.0)

    assert [len(turn.prompt) for turn in workload.turns] == [88, 112, 162]
    assert [turn.output for turn in workload.turns] == [12, 64, 2]
    # The end of a prompt is cut inside its last block, so a later one shares all of it.
    assert shared_tokens(turn.prompt for turn in workload.turns) == [0, 64, 88]


def test_the_chat_clock_is_scaled_to_the_rate(data: Path) -> None:
    workload = traces.chat_trace(data, requests=9, block=64, longest=999, rate=0.5)

    assert [each.start for each in workload.conversations] == [0.0, 3.0, 6.0]


def test_conversations_are_taken_or_left_as_a_whole(data: Path) -> None:
    workload = traces.chat_trace(data, requests=9, block=64, longest=130, rate=1.0)

    assert [len(turn.prompt) for turn in workload.turns] == [112]


def test_traffic_is_made_up_without_recordings() -> None:
    agents = traces.agents(None, sessions=3, requests=4, block=1, longest=999, pace=0.1)
    chat = traces.chat_trace(None, requests=20, block=16, longest=999, rate=1.0)

    assert [len(each.turns) for each in agents.conversations] == [4, 4, 4]
    assert len(chat.turns) == 20
    for each in (agents, chat):
        shared = shared_tokens(turn.prompt for turn in each.turns)
        assert sum(shared) > 0.2 * sum(len(turn.prompt) for turn in each.turns)
        assert "made up" in each.scale
