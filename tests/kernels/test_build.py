"""The kernels are compiled once, and whatever goes wrong there is one line, not a crash."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from radixserve.attention import cpu
from radixserve.config import EngineConfig
from radixserve.kernels.cpu import build
from radixserve.kernels.cpu.library import CpuKernels
from radixserve.model.loader import ModelFiles
from radixserve.model.runner import ModelRunner
from tests.model import tiny

COMPILES = pytest.mark.skipif(
    not any(shutil.which(name) for name in build.COMPILERS),
    reason="there is no C++ compiler to try",
)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that compile at once, in place of the real ones."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "api.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(build, "SOURCES", sources)
    return sources


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a shell script in the place of the compiler."""

    def make(script: str) -> Path:
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    return make


@COMPILES
def test_they_are_compiled_once_and_then_found(small: Path, tmp_path: Path):
    said: list[str] = []
    first = build.load(tmp_path / "cache", said.append)
    again = build.load(tmp_path / "cache", said.append)
    assert first.answer() == again.answer() == 42
    assert len(said) == 1
    assert "once" in said[0]


@COMPILES
def test_other_sources_are_compiled_anew(small: Path, tmp_path: Path):
    build.load(tmp_path / "cache", lambda said: None)
    (small / "api.cpp").write_text('extern "C" int answer() { return 43; }\n')
    assert build.load(tmp_path / "cache", lambda said: None).answer() == 43


@COMPILES
def test_another_machine_or_compiler_has_a_library_of_its_own(
    small: Path, monkeypatch: pytest.MonkeyPatch
):
    here = build._key(["c++"])
    monkeypatch.setattr(build, "_processor", lambda: "flags: sse2")
    there = build._key(["c++"])
    monkeypatch.setattr(build, "_version", lambda compiler: "another")
    assert len({here, there, build._key(["c++"])}) == 3


@COMPILES
def test_flags_of_the_environment_make_a_library_of_their_own(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (small / "api.cpp").write_text('extern "C" int answer() { return ANSWER; }\n')
    for answer in (1, 2, 1):
        monkeypatch.setenv("RADIXSERVE_CXXFLAGS", f"-O1 -DANSWER={answer}")
        assert build.load(tmp_path / "cache", lambda said: None).answer() == answer
    assert len(list((tmp_path / "cache").glob("*.so"))) == 2


@COMPILES
@pytest.mark.parametrize(
    ("flags", "message"),
    [("'-O1", "RADIXSERVE_CXXFLAGS cannot be read"), ("-no-such-flag", "-no-such-flag")],
)
def test_flags_that_are_none_are_named(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, message: str
):
    monkeypatch.setenv("RADIXSERVE_CXXFLAGS", flags)
    with pytest.raises(build.KernelsError, match=message):
        build.load(tmp_path / "cache", lambda said: None)


@COMPILES
def test_a_damaged_library_is_made_anew(small: Path, tmp_path: Path):
    build.load(tmp_path / "cache", lambda said: None)
    (made,) = (tmp_path / "cache").glob("*.so")
    made.unlink()
    made.write_bytes(b"\x7fELF no more")
    assert build.load(tmp_path / "cache", lambda said: None).answer() == 42


@COMPILES
def test_a_folder_that_cannot_be_written_costs_a_compilation_a_run(small: Path, tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    said: list[str] = []
    assert build.load(blocked / "cache", said.append).answer() == 42
    assert "cannot be kept" in said[0]


def test_without_a_compiler_it_says_how_to_get_one(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.KernelsError, match=r"no C\+\+ compiler .*apt-get install g\+\+"):
        build.load(tmp_path / "cache", lambda said: None)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 1", "does not run"),
        ('[ "$1" = --version ] && echo 1.0 && exit 0; echo "error: no C++20" >&2; exit 1', "C++20"),
        ('[ "$1" = --version ] && echo 1.0; exit 0', "cannot be loaded"),
    ],
    ids=["does not run", "does not compile", "makes nothing"],
)
def test_a_compiler_that_fails_is_named(
    small: Path, tmp_path: Path, compiler: Callable[[str], Path], script: str, message: str
):
    path = compiler(script)
    with pytest.raises(build.KernelsError) as caught:
        build.load(tmp_path / "cache", lambda said: None)
    assert message in str(caught.value)
    if "loaded" not in message:
        assert str(path) in str(caught.value)
    assert not list((tmp_path / "cache").glob("*.so")) or "loaded" in message


def test_without_kernels_the_model_runs_in_plain_torch_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cpu.kernels.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, logger="radixserve"):
            directory = tiny.write(tmp_path / "model")
            config = EngineConfig(dtype="float32", device="cpu", num_pages=20)
            runner = ModelRunner(ModelFiles(directory, directory, "tiny"), config)
    finally:
        cpu.kernels.cache_clear()
    assert runner.info.backend == "transformers with reference attention"
    (line,) = caplog.messages
    assert "plain torch" in line
    assert "apt-get install" in line


@COMPILES
def test_the_real_ones_say_what_they_were_compiled_for():
    native = cpu.kernels()
    assert isinstance(native, CpuKernels)
    assert native.features in ("avx512_bf16", "avx512", "avx2", "generic")
