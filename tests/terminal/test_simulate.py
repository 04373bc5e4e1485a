"""``radixserve simulate`` on small traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from radixserve.cli import app
from radixserve.errors import ConfigError


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two prompts of two blocks each, in turn: which three blocks do not hold."""
    ids = {0: [1, 2], 1: [3, 4]}
    lines = [
        {"timestamp": 1000 * turn, "input_length": 1024, "hash_ids": ids[turn % 2]}
        for turn in range(4)
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def test_curves_over_sizes(trace: Path):
    result = run(trace, "--tokens", "3K,1.6k", "--grace", 10, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["tokens"] == [1600, 3000]
    rates = found["hit_rates"]
    assert rates["least recently used"] == [2 * 512 / 4096, 2 * 1023 / 4096]
    assert rates["optimum"] == [(1023 + 512) / 4096, 2 * 1023 / 4096]
    assert rates["10 s of grace"] == rates["optimum"]
    assert rates["as served"][0] < rates["as served"][1] == 2 * 1023 / 4096


def test_a_table_for_people_and_a_picture(trace: Path, tmp_path: Path):
    picture = tmp_path / "curves.png"
    result = run(trace, "--plot", picture)
    assert result.exit_code == 0, result.output
    assert "4 requests, 2,048 distinct tokens in blocks of 512" in " ".join(result.output.split())
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_broken_line_is_named(trace: Path):
    trace.write_text(trace.read_text() + "\n{broken\n")
    result = run(trace)
    assert result.exit_code == 0
    assert "1 line is left out; the first: line 5: JSON is malformed" in result.output


@pytest.mark.parametrize(("most", "line"), [("MOST_REQUESTS", 4), ("MOST_BLOCKS", 3)])
def test_more_than_may_be_kept_is_not_counted(
    trace: Path, most: str, line: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(f"radixserve.simulation.trace.{most}", 3)
    result = run(trace)
    assert result.exit_code == 0
    assert f"line {line} and what follows is not counted" in " ".join(result.output.split())
    assert f"{line - 1} requests, 2,048 distinct tokens" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("tokens", "why"),
    [
        ("many", "'many' is no number of tokens"),
        ("3kk", "no number of tokens"),
        ("1e999", "no number of tokens"),
        ("nan", "no number of tokens"),
        ("", "no number of tokens"),
        ("-800k", "no number of tokens"),
        ("100", "no room for one block of 512"),
    ],
)
def test_sizes_that_cannot_be_are_refused(trace: Path, tokens: str, why: str):
    result = run(trace, "--tokens", tokens)
    assert isinstance(result.exception, ConfigError)
    assert why in str(result.exception)


def test_a_size_is_told_once_and_may_be_larger_than_memory(trace: Path):
    result = run(trace, "--tokens", "1000000000G,1k,1000", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["tokens"] == [1000, 10**18]
    assert {rates[1] for rates in found["hit_rates"].values()} == {2 * 1023 / 4096}
    sizes = json.loads(run(trace, "--json").stdout)["tokens"]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("picture", [".", "no/such.png"])
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, picture: str
):
    result = run(tmp_path / "no trace", "--plot", tmp_path / picture)
    assert isinstance(result.exception, ConfigError)
    assert "cannot be written" in str(result.exception)


@pytest.mark.parametrize("grace", ["nan", "inf", "-1"])
def test_a_time_that_is_none_is_bad_usage(trace: Path, grace: str):
    assert run(trace, "--grace", grace).exit_code == 2
