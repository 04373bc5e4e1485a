"""``radixserve verify``: reuse that changes nothing, and a cache that lies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from radixserve.engine.llm import LLM
from radixserve.errors import ConfigError
from radixserve.terminal.verify import Asked, compare, read, verify
from tests.model import tiny

ASKED = [
    Asked(messages=[{"role": "user", "content": "Hello"}], max_tokens=8),
    Asked(prompt="The tree keeps what it has seen", max_tokens=8),
    Asked(prompt="The tree keeps what it has lost", max_tokens=8, temperature=1.0, seed=7),
    Asked(prompt=[20, 21, 22, 23, 24, 25, 26, 27, 28], max_tokens=3),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.speaking(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def llm(directory: Path) -> LLM:
    return LLM(str(directory), dtype="float32", num_pages=200, page_size=4, threads=1)


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines))
    return path


def test_a_sound_cache_is_found_sound(llm: LLM):
    found = compare(llm, ASKED, 1e-3, progress=False)
    assert found.sound
    assert found.differences == []
    assert found.cached_tokens == found.prompt_tokens - len(ASKED)


def test_wrong_kv_is_found(llm: LLM):
    run = llm.core.runner._logits

    def spoilt(batch):
        logits = run(batch)
        # Whoever begins behind a cached prefix gets other numbers.
        if int(batch.positions[0]) > 0 and len(batch.token_ids) == 1 and spoilt.armed:
            logits = logits.flip(-1)
        return logits

    spoilt.armed = False
    llm.core.runner._logits = spoilt
    assert compare(llm, ASKED[1:2], 1e-3, progress=False).sound
    spoilt.armed = True
    llm.core.reset_prefix_cache()
    generate, calls = llm.generate, []

    def only_with_cache(*args, **kwargs):
        calls.append(kwargs.get("cache", "on"))
        spoilt.armed = calls[-1] == "on"
        return generate(*args, **kwargs)

    llm.generate = only_with_cache
    found = compare(llm, ASKED[1:2], 1e-3, progress=False)
    assert calls == ["off", "on", "on"]
    assert not found.sound
    assert found.differences[0].request == 1
    assert found.differences[0].without != found.differences[0].reused


def test_no_reuse_at_all_proves_nothing(llm: LLM):
    assert not compare(llm, [Asked(prompt=[20], max_tokens=2)], 1e-3, progress=False).sound


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "Line 2 of .* is no request"),
        ('{"max_tokens": 3}', "Line 2 of .* needs either messages or prompt"),
        ('{"prompt": "a", "messages": []}', "either messages or prompt"),
        ('{"prompt": {"a": 1}}', "Line 2"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, line: str, told: str):
    with pytest.raises(ConfigError, match=told):
        read(write(tmp_path / "asked", ['{"prompt": "a"}', line]))


def test_a_file_without_requests_or_without_a_file_is_told(tmp_path: Path):
    with pytest.raises(ConfigError, match="no requests"):
        read(write(tmp_path / "asked", ["", ""]))
    with pytest.raises(ConfigError, match="Cannot read"):
        read(tmp_path / "nowhere")


def test_the_command_ends_with_what_it_found(tmp_path: Path, directory: Path):
    app = typer.Typer()
    app.command()(verify)
    lines = [json.dumps({"prompt": "The tree keeps what it has seen", "max_tokens": 4})]
    asked = write(tmp_path / "asked", lines)
    arguments = [str(directory), "--requests", str(asked), "--dtype", "float32"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "Reuse changes nothing." in result.output
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(result.stdout.splitlines()[-1])["differences"] == []
    short = write(tmp_path / "short", ['{"prompt": [20], "max_tokens": 1}'])
    arguments[2] = str(short)
    assert CliRunner().invoke(app, arguments).exit_code == 1
