"""llama.cpp's own server, built once from the source package of llama-cpp-python."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from bench.peer.environments import LLAMA_CPP, MARK, PeerError, Say, run

RELEASE = LLAMA_CPP.requirements[0]
"""The same llama.cpp as is measured in-process."""
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)
COST = "it is compiled: five minutes on two cores, and needs cmake and a C++ compiler"
FAILURE = "llama-server cannot be built"


def make(folder: Path, say: Say) -> Path:
    """The program, below ``folder``; what is there from an earlier run is used.

    Raises:
        PeerError: it cannot be built.
    """
    home = folder / "llama-server"
    program, mark = home / "llama-server", home / MARK
    made = "\n".join((RELEASE, *OPTIONS)) + "\n"
    if mark.is_file() and mark.read_text() == made and program.exists():
        return program
    for tool in ("cmake", os.environ.get("CXX") or "c++"):
        if shutil.which(tool) is None:
            raise PeerError(f"{FAILURE}: there is no {tool} here")
    say(f"building llama-server (once; {COST})")
    home.mkdir(parents=True, exist_ok=True)
    log = folder / "llama-server.log"
    log.write_bytes(b"")
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        shutil.copy2(_build(Path(scratch), log), program)
    mark.write_text(made)
    return program


def _build(scratch: Path, log: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    name = RELEASE.split("==")[0]
    source = ["--no-deps", "--no-binary", name, "--dest", str(scratch), RELEASE]
    run([*pip, *source], log, FAILURE)
    archives = list(scratch.glob("*.tar.gz"))
    if not archives:
        raise PeerError(f"{FAILURE}: {RELEASE} has no source package")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(scratch, filter="data")
    tree = next(scratch.glob("*/vendor/llama.cpp"))
    build = scratch / "build"
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    run(["cmake", "-S", str(tree), "-B", str(build), *ninja, *OPTIONS], log, FAILURE)
    jobs = str(os.cpu_count() or 1)
    nice = ["nice"] if shutil.which("nice") else []
    target = ["--target", "llama-server", "--parallel", jobs]
    run([*nice, "cmake", "--build", str(build), *target], log, FAILURE)
    return build / "bin" / "llama-server"
