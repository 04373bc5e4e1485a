"""``radixserve lint`` from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from radixserve.cli import app
from tests.lint.logs import RULES, chat, write
from tests.text.tiny import tiny_tokenizer_dir


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A clock before all else."""
    bodies = [chat(f"It is 12:{n}.\n{RULES}", f"Question {n}?") for n in range(10, 20)]
    return write(tmp_path / "log.jsonl", bodies)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "good.jsonl.gz", [chat(RULES, f"Question {n}?") for n in range(30)])


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["lint", *map(str, arguments)])


def test_a_report_for_people(log: Path):
    result = run(log)
    assert result.exit_code == 0, result.output
    told = " ".join(result.output.split())
    assert "10 requests" in told
    assert "4 bytes of UTF-8 a token" in told
    assert "timestamp" in told
    assert "at 5000 tokens computed a second" in told
    assert "least recently used" in told
    assert "A template to try" in told
    assert "{{ time }}" in told


def test_a_report_for_programs(log: Path):
    result = run(log, "--json", "--prefill-rate", 1000, "--page-size", 64)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    logs = found["logs"]
    assert logs["requests"] == 10
    assert logs["shared"]["page_size"] == 64
    assert logs["spots"][0]["guess"] == "timestamp"
    assert logs["spots"][0]["milliseconds"] == logs["spots"][0]["tokens"]
    assert found["left_out"] == 0


@pytest.mark.parametrize(("bound", "code"), [(None, 0), (0, 0), (50, 1), (100, 1)])
def test_the_exit_code_says_whether_enough_is_shared(log: Path, bound: int | None, code: int):
    assert run(log, *([] if bound is None else ["--fail-under", bound])).exit_code == code


def test_the_bound_is_passed_by_what_reuses_well(good: Path):
    assert run(good, "--fail-under", 90).exit_code == 0


def test_broken_lines_are_told_the_rest_is_counted_and_the_exit_code_says_so(log: Path):
    log.write_bytes(log.read_bytes() + b"{broken\n\x00\xff\n")
    result = run(log, "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["logs"]["requests"] == 10
    assert f"left out: {log}, line 11: JSON is malformed" in result.stderr
    assert f"left out: {log}, line 12:" in result.stderr
    assert run(log, "--fail-under", 50).exit_code == 1


def test_where_nothing_can_be_read_that_is_bad_usage(tmp_path: Path):
    file = tmp_path / "picture.png"
    file.write_bytes(bytes(range(256)) * 100)
    result = run(file)
    assert result.exit_code == 2
    assert "nothing could be read" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-file.jsonl"],
        ["."],
        ["--page-size", "0"],
        ["--prefill-rate", "0"],
        ["--fail-under", "101"],
        ["--fail-under", "nan"],
        ["--prefill-rate", "nan"],
        ["--prefill-rate", "inf"],
        ["--model", "/no/such/model"],
        ["--colour"],
    ],
)
def test_bad_usage(log: Path, arguments: list[str]):
    files = [log] if arguments and arguments[0].startswith("--") else []
    result = run(*files, *arguments)
    assert result.exit_code == 2, result.output


def test_a_models_template_is_checked_beside_the_log(log: Path, tmp_path: Path):
    directory = tiny_tokenizer_dir(tmp_path / "tiny")
    result = run(log, "--model", directory, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["logs"]["counted"] == f"those of {directory}"
    [template] = found["templates"]
    assert (template["kind"], template["share"]) == ("chat", 1.0)


def test_templates_of_both_kinds(tmp_path: Path):
    chats, prompts = tmp_path / "chat.jinja", tmp_path / "prompt.j2"
    chats.write_text("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}")
    prompts.write_text("It is {{ now }}.\n" + RULES + "\n{{ question }}\n")
    result = run(chats, prompts)
    assert result.exit_code == 0, result.output
    told = " ".join(result.output.split())
    assert "the next turn keeps 0 of" in told
    assert "line 1: now may change with every request" in told
    assert run(chats, "--fail-under", 100).exit_code == 1


def test_a_clock_before_the_documents_fails(tmp_path: Path):
    template = tmp_path / "prompt.j2"
    loop = "{% for doc in documents %}{{ doc }}\n{% endfor %}"
    template.write_text(f"The time is {{{{ now }}}}.\n{loop}{{{{ question }}}}\n")
    result = run(template, "--fail-under", 100)
    assert result.exit_code == 1, result.output
    assert "0.0% of its text is in front of what varies" in result.output
    assert "tokens and what is in documents behind it do not" in " ".join(result.output.split())
    template.write_text(f"{loop}The time is {{{{ now }}}}.\n{{{{ question }}}}\n")
    assert run(template, "--fail-under", 100).exit_code == 0


@pytest.mark.parametrize(
    "content", [b"{% for m in messages %}", b"", b" \n", b"\xff\xfe", b"{{ x", b"x" * (2**22 + 1)]
)
def test_a_broken_template_is_named_and_the_log_is_still_read(
    log: Path, tmp_path: Path, content: bytes
):
    broken = tmp_path / "broken.jinja"
    broken.write_bytes(content)
    result = run(broken, log, "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["logs"]["requests"] == 10
    assert str(broken) in result.stderr


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "long"),
        ("{{ 9 ** (9 ** 9) }}", "long"),
        ("{{ 'x' * 10 ** 11 }}", "MemoryError"),
        ("{% set n = namespace(x='x') %}"
         "{% for a in range(99) %}{% set n.x = n.x * 2 %}{% endfor %}", "[Mm]emory"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ raise_exception('Not so.') }}", "Not so."),
        ("{{ nothing.at.all }}", "undefined"),
    ],
)  # fmt: skip
def test_a_chat_template_that_does_not_end_well_is_named_and_the_log_is_still_read(
    log: Path, tmp_path: Path, body: str, why: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("radixserve.lint.check.SECONDS", 2.0)
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}" + body)
    result = run(template, log, "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["logs"]["requests"] == 10
    assert json.loads(result.stdout)["templates"] == []
    assert str(template) in result.stderr
    assert re.search(why, result.stderr)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_has_no_end(device: str):
    result = run(device)
    assert result.exit_code == 2
    assert "is a device" in result.stderr
