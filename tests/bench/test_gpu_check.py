"""The check for GPUs says what it needs, what to bring along, and what a report holds."""

from __future__ import annotations

import json
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


def test_the_benchmark_can_be_tried_out_without_a_gpu(tmp_path: Path):
    output = tmp_path / "dry.json"
    tiny = ("--geometry", "tiny", "--shrink", "64", "--rows", "4", "--steps", "2", "--repeats", "1")
    done = run("--bench", "--device", "cpu", *tiny, "--only", "cascade", "--output", str(output))
    report = json.loads(output.read_text(encoding="utf-8"))
    assert report["failures"] == {}
    assert {"first", "first-long", "prefill", "decode-apart", "idle-shared"} <= set(report["cases"])
    assert report["subjects"]["cascade"]["dtype"] == "bfloat16"
    assert report["where"]["checks"]
    assert output.with_suffix(".png").is_file()
    # What was not run was not met.
    assert done.returncode == 1
    assert "FAILED" in done.stdout


def test_a_dry_run_never_takes_the_place_of_a_real_one(tmp_path: Path):
    done = run("--bench", "--device", "cpu")
    assert done.returncode == 2
    assert "needs --output" in done.stderr


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
