"""Traces of what was asked: what simulations need, and nothing that tells of the text."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from radixserve.errors import ConfigError
from radixserve.server.recording import BLOCK, Recorder
from radixserve.simulation.paths import path
from radixserve.simulation.trace import Trace, read
from tests.server.stack import stack


def recorded(directory: Path, *requests: dict[str, object]) -> Trace:
    """What is on record of completions that were asked for one after the other."""
    file = directory / "trace.jsonl"

    async def scenario() -> None:
        with Recorder(file) as recorder:
            async with stack(directory, recorder=recorder, num_pages=200) as served:
                for request in requests:
                    assert (await served.ask(max_tokens=3, **request)).status_code == 200

    asyncio.run(scenario())
    return read(file)


def tokens(count: int, *, last: int = 9) -> list[int]:
    return [10 + at % 200 for at in range(count - 1)] + [last]


def test_a_trace_says_what_prompts_share(tmp_path: Path):
    long = 2 * BLOCK + 5
    trace = recorded(
        tmp_path,
        {"prompt": tokens(long)},
        {"prompt": tokens(long, last=8)},
        {"prompt": tokens(long)},
    )
    assert trace.block_size == BLOCK
    assert [call.tokens for call in trace.calls] == [long] * 3
    first, second, third = ([id(node) for node in path(call.end)] for call in trace.calls)
    assert first[0] == second[0]
    assert first[1:] != second[1:]
    assert first == third
    assert trace.distinct == 4 * BLOCK
    times = [call.time for call in trace.calls]
    assert times == sorted(times)


def test_what_passes_the_cache_by_is_no_part_of_a_trace(tmp_path: Path):
    prompt = tokens(2 * BLOCK)
    modes = [{"mode": mode} for mode in ("off", "read-only", "on")]
    trace = recorded(tmp_path, *({"prompt": prompt, "cache": mode} for mode in modes))
    assert len(trace.calls) == 2


def test_nothing_is_shared_beyond_a_salt(tmp_path: Path):
    prompt = tokens(2 * BLOCK)
    trace = recorded(tmp_path, {"prompt": prompt}, {"prompt": prompt, "cache_salt": "mine"})
    first, second = (path(call.end) for call in trace.calls)
    assert not {id(node) for node in first} & {id(node) for node in second}
    assert "mine" not in (tmp_path / "trace.jsonl").read_text()


def test_whoever_has_the_file_cannot_try_texts_against_it(tmp_path: Path):
    prompt = {"prompt": tokens(2 * BLOCK)}
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        trace = recorded(tmp_path / name, prompt)
        files.append({node.key for node in trace.paths.nodes()})
    assert not files[0] & files[1]


def test_several_prompts_of_one_request_are_several(tmp_path: Path):
    trace = recorded(tmp_path, {"prompt": [tokens(40), tokens(50)]})
    assert sorted(call.tokens for call in trace.calls) == [40, 50]


def test_a_prompt_whose_answer_is_empty_is_on_record(tmp_path: Path):
    trace = recorded(
        tmp_path, {"prompt": tokens(40), "stop_token_ids": [*range(266)]}, {"prompt": tokens(50)}
    )
    assert [call.tokens for call in trace.calls] == [40, 50]


def test_a_file_that_cannot_be_written_is_refused_at_start(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be written"):
        Recorder(tmp_path / "no" / "trace.jsonl")
