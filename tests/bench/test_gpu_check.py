"""The check for GPUs says what it needs, what to bring along, and what a report holds."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from bench.gpu_check import ROOT, outcomes, shown, wheels
from radixserve.model.facts import GpuFacts
from radixserve.model.startup import gpu_checks

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_one[cuda]" time="0.5"/>
<testcase classname="tests.a" name="test_two" time="0.1">
<failure message="not equal">x</failure></testcase>
<testcase classname="tests.b" name="test_three" time="0"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.gpu_check", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("arguments", [(), ("--bench",)])
def test_without_a_gpu_it_says_so_in_one_line_and_ends_with_2(
    arguments: tuple[str, ...], tmp_path: Path
):
    done = run(*arguments, "--output", str(tmp_path / "out.json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "needs a GPU" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_list_to_bring_along_can_be_given_to_pip():
    done = run("--wheels")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert lines == wheels()
    for name in ("setuptools", "torch", "flashinfer-python", "triton", "pytest"):
        assert any(line.startswith(name) for line in lines), name


def test_the_versions_to_install_are_those_that_the_start_accepts():
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extra = told["project"]["optional-dependencies"]["gpu"]
    bare = GpuFacts("2", "13.0", "13.0", (), None, None, None, None, None)
    remedies = " ".join(check.remedy for check in gpu_checks(bare))
    for requirement in extra:
        assert requirement.split(";")[0] in remedies


def test_a_report_of_pytest_becomes_one_entry_a_test():
    found = outcomes(JUNIT)
    assert [each["outcome"] for each in found] == ["passed", "failed", "skipped"]
    assert found[1]["why"] == "not equal"
    assert shown(found)[-1] == "1 failed, 1 passed, 1 skipped"
    assert "failed tests.a::test_two: not equal" in shown(found)


def test_a_report_without_tests_has_failed():
    (only,) = outcomes("<testsuites><testsuite/></testsuites>")
    assert only["outcome"] == "failed"
