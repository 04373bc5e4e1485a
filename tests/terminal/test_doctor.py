"""``radixserve doctor`` as people and programs read it."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from radixserve import cli
from radixserve.model import facts
from tests.model.machine import ALL


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, ["doctor", *arguments], env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])  # which doctor adds to


def test_each_fact_has_a_line_and_all_is_well(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(facts, "gather", lambda: ALL)
    code, out = invoke()
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 13
    assert all("  ok  " in line for line in lines)
    assert "GPU             ok          NVIDIA H200, 138.0 of 140.0 GiB free" in lines


def test_what_is_missing_has_its_remedy_below_and_a_status(monkeypatch: pytest.MonkeyPatch):
    lacking = replace(ALL, gpu=replace(ALL.gpu, flashinfer="[0.5]"))
    monkeypatch.setattr(facts, "gather", lambda: lacking)
    code, out = invoke()
    assert code == 1
    lines = out.splitlines()
    (at,) = [n for n, line in enumerate(lines) if "missing" in line]
    assert lines[at].startswith("FlashInfer")
    assert lines[at].endswith("[0.5]")
    assert "pip install 'flashinfer-python>=0.6.13,<0.8'" in lines[at + 1]


def test_programs_get_json(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(facts, "gather", lambda: replace(ALL, disk=0))
    code, out = invoke("--json")
    assert code == 1
    lines = {line["name"]: line for line in json.loads(out)}
    assert lines["disk"]["state"] == "missing"
    assert lines["disk"]["remedy"]
    assert lines["Triton"] == {"name": "Triton", "state": "ok", "found": "3.9.0", "remedy": ""}


def test_this_machine_can_be_looked_at():
    code, out = invoke("--json")
    assert code in (0, 1)
    lines = {line["name"]: line for line in json.loads(out)}
    assert lines["torch"]["found"]
    assert (code == 1) == any(line["state"] == "missing" for line in lines.values())
