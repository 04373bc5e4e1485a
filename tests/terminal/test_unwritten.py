"""Output that cannot be written: one line with the cause, and no word where nobody reads it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from radixserve import cli
from radixserve.engine import llm
from radixserve.model import facts
from radixserve.terminal import tenants, verify
from tests.model.machine import ALL
from tests.terminal.commands import HANG, ROOT, running
from tests.terminal.stub import HandClock, Stub, hosting

FULL = "/dev/full"
CAUSE = "Error: The output cannot be written: No space left on device.\n"
MAIN = "from radixserve import cli; cli.main()"
PLAN = ["plan", "--layers", "2", "--kv-heads", "2", "--head-dim", "4"]
TRACE = '{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}\n'


@pytest.fixture
def full() -> Iterator[io.TextIOWrapper]:
    """Takes nothing."""
    with closing(os.fdopen(os.open(FULL, os.O_WRONLY), "w")) as file:
        yield file


@pytest.fixture(autouse=True)
def consoles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be written stays in them."""
    for module, name in ((cli, "out"), (cli, "err"), (tenants, "out")):
        console = Console(highlight=False, soft_wrap=True, stderr=name == "err")
        monkeypatch.setattr(module, name, console)


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """How the command ends."""
    monkeypatch.setattr(sys, "argv", ["radixserve", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


def said_by(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    full: io.TextIOWrapper,
    *arguments: str,
) -> str:
    """What the command says where its output cannot be written, with which it ends."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert ended(patch, *arguments) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        *([each, "--help"] for each in ("serve", "plan", "chat", "probe", "doctor", "verify")),
        *([each, "--help"] for each in ("simulate", "lint", "tenants")),
        PLAN,
        [*PLAN, "--json"],
        ["simulate", "TRACE"],
        ["simulate", "TRACE", "--json"],
        ["lint", "TEMPLATE"],
        ["lint", "TEMPLATE", "--json"],
        ["doctor"],
        ["doctor", "--json"],
        ["verify", "--requests", "TRACE"],
        ["verify", "--requests", "TRACE", "--json"],
        ["tenants", "add", "eve", "--file", "TENANTS"],
        ["tenants", "list", "--file", "TENANTS"],
    ],
    ids=" ".join,
)
def test_every_command_ends_with_the_cause(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    full: io.TextIOWrapper,
    tmp_path: Path,
    arguments: list[str],
):
    files = {
        "TRACE": TRACE,
        "TEMPLATE": "{{ question }} is the question.",
        "TENANTS": "[tenants.adam]\n",
    }
    for name, text in files.items():
        (tmp_path / name).with_suffix(".jinja" if name == "TEMPLATE" else "").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(facts, "gather", lambda: ALL)
    monkeypatch.setenv("PATH", os.environ["PATH"])  # which doctor adds to
    found = verify.Comparison(
        requests=1, prompt_tokens=9, cached_tokens=8, largest=0.0, differences=[], tolerance=0.0
    )
    info = SimpleNamespace(dtype="float32")
    engine = SimpleNamespace(core=SimpleNamespace(runner=SimpleNamespace(info=info)))
    monkeypatch.setattr(llm, "LLM", lambda *_, **__: engine)
    monkeypatch.setattr(verify, "read", lambda path: [])
    monkeypatch.setattr(verify, "compare", lambda *_, **__: found)
    given = ["TEMPLATE.jinja" if each == "TEMPLATE" else each for each in arguments]
    assert said_by(monkeypatch, capsys, full, *given) == CAUSE


@pytest.mark.parametrize("arguments", [["probe", "URL"], ["probe", "URL", "--json"], ["chat"]])
def test_so_do_those_that_ask_a_server(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    full: io.TextIOWrapper,
    arguments: list[str],
):
    with hosting(Stub(HandClock()).app) as url:
        monkeypatch.setattr(sys, "stdin", io.StringIO("Hello?\n"))
        given = [url if each == "URL" else each for each in arguments]
        given += ["--url", url] if given == ["chat"] else []
        assert said_by(monkeypatch, capsys, full, *given).endswith(CAUSE)


def test_a_message_that_cannot_be_written_either_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, full: io.TextIOWrapper
):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", full)
        assert ended(patch, "plan", "--layers", "0") == 1


def test_what_is_no_matter_of_the_output_is_not_said_to_be_one(monkeypatch: pytest.MonkeyPatch):
    def broken() -> None:
        raise ConnectionResetError("a fault of ours")

    monkeypatch.setattr(facts, "gather", broken)
    monkeypatch.setattr(sys, "argv", ["radixserve", "doctor"])
    with pytest.raises(ConnectionResetError):
        cli.main()


@pytest.mark.parametrize("arguments", [PLAN, [*PLAN, "--json"]])
@pytest.mark.parametrize(("kind", "said"), [("full", CAUSE), ("closed", "")])
def test_nothing_is_left_to_be_said_when_the_process_ends(
    arguments: list[str], kind: str, said: str
):
    reading, writing = os.pipe()
    os.close(reading)
    with open(FULL, "wb") as full, open(writing, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *arguments],
            cwd=ROOT,
            stdout=full if kind == "full" else closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("kind", ["full", "closed"])
def test_nor_where_messages_cannot_be_written(kind: str):
    reading, writing = os.pipe()
    os.close(reading)
    with open(FULL, "wb") as full, open(writing, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "plan", "--layers", "0"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=full if kind == "full" else closed,
            text=True,
            timeout=HANG,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, "")


def test_a_server_that_cannot_say_where_it_is_says_why():
    with open(FULL, "wb") as full, running("--port", "0", stdout=full) as process:
        _, errors = process.communicate(timeout=HANG)
    assert (process.returncode, errors) == (1, CAUSE)
