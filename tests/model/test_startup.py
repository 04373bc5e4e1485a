"""What is missing is named with its remedy, by the doctor and at the start on a GPU alike."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from radixserve.config import EngineConfig
from radixserve.errors import ConfigError
from radixserve.model import facts as reading
from radixserve.model import loader, runner
from radixserve.model.facts import reach_tools
from radixserve.model.loader import describe, pick_device
from radixserve.model.parallel import ALONE
from radixserve.model.startup import Check, checks, gpu_checks, require_gpu
from tests.model import tiny
from tests.model.fake_memory import FakeMemory
from tests.model.machine import ALL, GIB, GOOD, H200


def missing(**changed: Any) -> list[Check]:
    return [check for check in gpu_checks(replace(GOOD, **changed)) if check.state == "missing"]


def test_a_machine_that_has_all_is_ok_in_every_line():
    assert {check.state for check in checks(ALL)} == {"ok"}
    require_gpu(GOOD)


@pytest.mark.parametrize(
    ("changed", "name", "remedy"),
    [
        ({"flashinfer": None}, "FlashInfer", "pip install 'flashinfer-python>=0.6.13,<0.8'"),
        ({"flashinfer": "0.6.12"}, "FlashInfer", "0.6.13 or newer, below 0.8, is needed"),
        ({"flashinfer": "0.8.0"}, "FlashInfer", "below 0.8"),
        ({"flashinfer": "1.0rc1"}, "FlashInfer", "below 0.8"),
        ({"triton": None}, "Triton", "pip install 'triton>=3.4'"),
        ({"triton": "3.3.1"}, "Triton", "3.4 or newer"),
        ({"nvcc": None}, "nvcc", "install the CUDA toolkit 13.0, or set CUDA_HOME"),
        ({"nvcc": "12.9"}, "nvcc", "install the CUDA toolkit 13.0"),
        ({"ninja": None}, "ninja", "pip install ninja"),
        ({"compiler": None}, "C++ compiler", "apt-get install g++"),
        (
            {"driver": "12.8"},
            "driver",
            "update the driver, or install a build of torch for CUDA 12",
        ),
        ({"cuda": None, "torch": "2.13.0+cpu"}, "torch", "a build of torch with CUDA"),
        ({"gpus": ()}, "GPU", "nvidia-smi"),
        ({"fault": "no module named tvm_ffi"}, "FlashInfer", "pip install --force-reinstall"),
        ({"gpus": (replace(H200, name="Tesla V100", capability=(7, 0)),)}, "GPU", "Tesla V100"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_does_not_fit_is_refused_with_cause_and_remedy(
    changed: dict[str, Any], name: str, remedy: str
):
    (line,) = missing(**changed)
    assert line.name == name
    assert remedy in line.remedy
    with pytest.raises(ConfigError) as caught:
        require_gpu(replace(GOOD, **changed))
    for part in (name, line.found, line.remedy, "--device cpu"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"flashinfer": "0.6.13"},
        {"flashinfer": "0.6.13.post1"},
        {"flashinfer": "0.7.99"},
        {"triton": "3.4.0"},
        {"driver": "13.0"},
        {"driver": "14.2"},
        {"nvcc": "13.2"},
        {"gpus": (replace(H200, capability=(7, 5)),)},
    ],
    ids=str,
)
def test_what_is_known_to_work_together_is_not_refused(changed: dict[str, Any]):
    assert missing(**changed) == []


def test_the_versions_that_are_supported_are_named_where_all_is_well_too():
    for known in (GOOD, replace(GOOD, driver=None, gpus=(), flashinfer=None)):
        (line,) = [check for check in gpu_checks(known) if check.name == "FlashInfer"]
        assert "supported: 0.6.13 or newer, below 0.8" in line.found


def test_the_doctor_lists_all_that_the_start_looks_at():
    lines = {check.name: check for check in checks(ALL)}
    assert all(lines[check.name] == check for check in gpu_checks(GOOD))


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        (
            {"cuda": None, "torch": "2.13.0+cpu"},
            r"torch: 2.13.0\+cpu, built without CUDA \(install",
        ),
        ({"driver": None}, r"driver: none \(install NVIDIA's driver\)"),
        ({"driver": "12.8"}, r"driver: runs CUDA up to 12.8, torch needs 13.0 \(update the driver"),
        ({}, r"GPU: torch sees none \(see what nvidia-smi says"),
    ],
    ids=str,
)
def test_a_gpu_that_torch_does_not_see_is_refused_with_the_first_cause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    changed: dict[str, Any], cause: str,
):  # fmt: skip
    found = replace(GOOD, gpus=(), **changed)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(loader, "gpu_facts", lambda: found)
    monkeypatch.setattr(loader, "driver", lambda: found.driver)
    with pytest.raises(ConfigError, match=rf"torch sees no GPU\. {cause}.*--device cpu"):
        pick_device("cuda")
    assert pick_device("cpu").type == "cpu"
    assert not caplog.messages
    assert pick_device("auto").type == "cpu"
    warned = [message for message in caplog.messages if re.search(cause, message)]
    assert len(warned) == (found.driver is not None), "who has no driver means no GPU"


def test_a_model_for_which_others_leave_no_memory_is_refused_with_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def load(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(runner, "gpu_facts", lambda: GOOD)
    monkeypatch.setattr(runner, "CudaMemory", lambda device: FakeMemory(outside=90 * GIB))
    monkeypatch.setattr(runner, "executable", load)
    config = EngineConfig(device="cpu", dtype="float32")
    with pytest.raises(ConfigError) as caught:
        runner._on_gpu(describe(tiny.write(tmp_path), config), config, ALONE)
    for part in ("the model does not fit into a GPU", "others hold 90.00 GiB", "free what others"):
        assert part in str(caught.value)


def test_everything_that_is_missing_is_said_at_once():
    with pytest.raises(ConfigError, match=r"FlashInfer: none .*; nvcc: none .*; ninja: none"):
        require_gpu(replace(GOOD, flashinfer=None, nvcc=None, ninja=None))


def test_a_machine_without_a_driver_needs_nothing_of_a_gpu():
    bare = replace(
        GOOD, torch="2.13.0+cpu", cuda=None, driver=None, gpus=(), flashinfer=None, triton=None,
        nvcc=None, ninja=None,
    )  # fmt: skip
    states = {check.name: check.state for check in gpu_checks(bare)}
    assert states.pop("torch") == states.pop("C++ compiler") == "ok"
    assert set(states.values()) == {"not needed"}


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"memory": GIB}, "memory"),
        ({"disk": GIB}, "disk"),
        ({"hub_writable": False}, "model cache"),
        ({"has_kernels": False, "kernels": "no compiler"}, "native kernels"),
    ],
    ids=str,
)
def test_what_a_cpu_needs_is_looked_at_too(changed: dict[str, Any], name: str):
    (line,) = [check for check in checks(replace(ALL, **changed)) if check.state == "missing"]
    assert line.name == name
    assert line.remedy


def test_the_start_on_a_gpu_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def load(*_: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(runner, "gpu_facts", lambda: replace(GOOD, flashinfer="0.5.0"))
    monkeypatch.setattr(runner, "executable", load)
    config = EngineConfig(device="cpu", dtype="float32")
    with pytest.raises(ConfigError, match=r"FlashInfer: 0.5.0"):
        runner._on_gpu(describe(tiny.write(tmp_path), config), config, ALONE)


# Reading


def test_the_programs_of_this_environment_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    reach_tools()
    reach_tools()
    assert os.environ["PATH"] == f"/usr/bin{os.pathsep}{Path(sys.executable).parent}"


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_what_cannot_be_imported_says_why_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "broken_part.py").write_text("raise OSError('no libcudart\\nand more')")
    monkeypatch.syspath_prepend(tmp_path)
    assert reading._fault("broken_part") == "no libcudart"
    assert reading._fault("json") is None


@pytest.mark.parametrize(
    ("script", "release"),
    [("echo 'Cuda compilation tools, release 12.9, V12.9.86'", "12.9"), ("exit 1", None)],
)
def test_nvcc_tells_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, release: str | None
):
    program(tmp_path, "nvcc", script)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert reading.gpu_facts().nvcc == release


def test_an_nvcc_that_cuda_home_lacks_is_not_looked_for_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program(tmp_path, "nvcc", "echo release 12.9,")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "empty"))
    assert reading.gpu_facts().nvcc is None
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert reading.gpu_facts().nvcc == "12.9"


def test_a_folder_that_is_still_to_be_made_counts_by_the_one_above(tmp_path: Path):
    assert reading._writable(tmp_path / "not" / "there")
