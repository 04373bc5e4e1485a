"""Reading traces: what is right is kept, whatever stands between."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixserve.simulation import lines
from radixserve.simulation.paths import path
from radixserve.simulation.replay import Plan, least_recently_used, replay
from radixserve.simulation.served import serve
from radixserve.simulation.trace import TraceError, read


def line(**fields: object) -> str:
    return json.dumps({"timestamp": 0, "input_length": 1024, "hash_ids": [1, 2], **fields})


def written(directory: Path, *lines: str | bytes) -> Path:
    file = directory / "trace.jsonl"
    file.write_bytes(
        b"\n".join(each if isinstance(each, bytes) else each.encode() for each in lines)
    )
    return file


def test_what_prompts_share_is_one_path(tmp_path: Path):
    found = read(
        written(
            tmp_path,
            line(timestamp=2000, input_length=1500, hash_ids=[1, 2, 3], output_length=7),
            line(timestamp=1000, input_length=1500, hash_ids=[1, 2, 4], extra="is ignored"),
            "",
        )
    )
    assert [call.time for call in found.calls] == [1.0, 2.0]
    assert found.distinct == 4 * 512
    first, second = (path(call.end) for call in found.calls)
    assert first[0] is second[0]
    assert [node.size for node in first] == [2, 1]
    assert not found.skipped


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("{", "line 2: Input data was truncated"),
        ("[]", "line 2: Expected `object`"),
        ('{"other": ' + "[" * 100_000, "line 2: nested too deeply"),
        ('{"messages": []}', "it looks like a log of requests, which radixserve lint reads"),
        (b"\x80\xff\x00", "line 2: "),
        (line(hash_ids=["a"]), "Expected `int`, got `str`"),
        (line(hash_ids=[1]), "line 2: "),
        (line(hash_ids=[1, 2, 3]), "1024 tokens are 2 blocks of 512, not 3"),
        (line(hash_ids=[1, 2**63]), "64-bit"),
        (line(input_length=0, hash_ids=[]), "at least 1"),
        (line(input_length=-5), "at least 1"),
        (line(block_size=0), "at least 1"),
        (line(block_size=512 * 10**300, input_length=10**300, hash_ids=[1]), "at most"),
        (line(input_length=10**300), "at most"),
        (line(block_size=100, input_length=200), "no multiple"),
        (line(timestamp=None), "Expected `float`, got `null`"),
    ],
)
def test_a_broken_line_is_left_out_and_named(tmp_path: Path, broken: str | bytes, why: str):
    # Of the last block, an id may be missing, but not of one before it.
    if broken == line(hash_ids=[1]):
        broken = line(hash_ids=[1], input_length=1600)
    found = read(written(tmp_path, line(), broken, line()))
    assert len(found.calls) == 2
    assert found.skipped == 1
    assert found.fault.startswith("line 2: ")
    assert why in found.fault


@pytest.mark.parametrize("lines", [(), ("",), ("no trace",), (b"\x00" * 100,)])
def test_a_file_without_requests_is_refused(tmp_path: Path, lines: tuple[str | bytes, ...]):
    with pytest.raises(TraceError, match="is no trace"):
        read(written(tmp_path, *lines))


def test_what_is_no_request_either_gets_no_such_advice(tmp_path: Path):
    with pytest.raises(TraceError, match="missing required field `timestamp`") as raised:
        read(written(tmp_path, '{"text": "my messages: none"}'))
    assert "radixserve lint" not in str(raised.value)


def test_a_folder_or_nothing_is_refused(tmp_path: Path):
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(TraceError, match="cannot be read"):
            read(place)


def test_a_line_without_an_end_takes_no_more_memory_than_one_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lines, "LONGEST", 200)
    found = read(written(tmp_path, line(), line(hash_ids=[5] * 1000), line(), "broken"))
    assert found.skipped == 2
    assert found.fault == "line 2: longer than 200 bytes"
    assert len(found.calls) == 2


def test_larger_blocks_count_where_they_are_whole(tmp_path: Path):
    file = written(
        tmp_path,
        line(input_length=2048, hash_ids=[1, 2, 3, 4]),
        line(input_length=1536, hash_ids=[1, 2, 3]),
        line(input_length=512, hash_ids=[1]),
    )
    found = read(file, block_size=1024)
    # What is shorter than a block has been asked too: it is a part of what may be reused.
    assert [len(path(call.end)) for call in found.calls] == [2, 1, 0]
    assert found.distinct == 2 * 1024
    plan = Plan.of(found)
    for share in (replay(plan, least_recently_used(plan), 2), serve(found, 2)):
        assert share == 1024 / (2048 + 1536 + 512)
    with pytest.raises(TraceError, match="no multiple of its 512"):
        read(file, block_size=1000)


def test_a_compressed_trace_counts_up_to_where_it_breaks_off(tmp_path: Path):
    noise = [line(timestamp=n, hash_ids=[n, n * 7919 % 10_007]) for n in range(2000)]
    whole = gzip.compress("\n".join(noise).encode())
    file = written(tmp_path, whole)
    assert len(read(file).calls) == 2000
    file.write_bytes(whole[: len(whole) // 2])
    found = read(file)
    assert 0 < len(found.calls) < 2000
    assert found.skipped == 1
    assert "the compressed data ends or breaks here" in found.fault
    file.write_bytes(whole[:12])
    with pytest.raises(TraceError, match="is no trace: line 1: the compressed data"):
        read(file)


def test_what_stands_behind_compressed_data_is_left_out(tmp_path: Path):
    found = read(written(tmp_path, gzip.compress(f"{line()}\n".encode()) + b"and more"))
    assert (len(found.calls), found.skipped) == (1, 1)
    assert found.fault.startswith("line 2: the compressed data ends or breaks here")


def test_a_file_that_cannot_be_read_to_its_end_counts_up_to_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def failing(*_: object) -> Iterator[tuple[int, bytes]]:
        yield 1, line().encode()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("radixserve.simulation.trace.lines", failing)
    found = read(tmp_path / "trace.jsonl")
    assert (len(found.calls), found.skipped) == (1, 1)
    assert found.fault == "line 2: cannot be read from here on: Input/output error"


def test_a_mark_of_the_encoding_is_no_part_of_the_first_line(tmp_path: Path):
    found = read(written(tmp_path, b"\xef\xbb\xbf" + line().encode(), line()))
    assert len(found.calls) == 2


def test_progress_is_told_in_bytes(tmp_path: Path):
    file = written(tmp_path, line(), line())
    seen: list[int] = []
    read(file, progress=seen.append)
    assert sum(seen) == file.stat().st_size
