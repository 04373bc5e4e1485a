"""Compiles the kernels once for the machine they run on, and keeps what came of it."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

SOURCES = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-pthread",
    "-Wno-psabi", "-Wno-uninitialized", "-Wno-maybe-uninitialized",
)  # fmt: skip
MORE_FLAGS = "RADIXSERVE_CXXFLAGS"
"""Of the environment: the flags there follow ours. ``-mno-avx512f`` makes what AVX2 would get."""
LIMIT = 600
"""Seconds that a compiler may take."""


class KernelsError(Exception):
    """There are no native kernels here; the message says why and how to get them."""


def load(cache: Path, say: Callable[[str], None]) -> ctypes.CDLL:
    """The compiled kernels, from the folder ``cache`` if they were made for this very machine.

    ``say`` is told when compiling begins, since that takes seconds. Where ``cache`` cannot be
    written, they are compiled for this process alone.

    Raises:
        KernelsError: no compiler, or one that fails; ``MORE_FLAGS`` that are none.
    """
    compiler = _compiler()
    command = [compiler, *FLAGS, *_more_flags()]
    name = f"kernels-{_key(command)}.so"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{name}.lock"):
            if (cache / name).exists():
                with contextlib.suppress(OSError):  # damaged: made anew
                    return ctypes.CDLL(str(cache / name))
            _compile(command, cache / name, say)
            return _open(cache / name)
    except OSError as error:
        say(f"the kernels cannot be kept in {cache} ({error}); they are compiled for this run only")
    with tempfile.TemporaryDirectory(prefix="radixserve-kernels-") as folder:
        made = Path(folder) / name
        _compile(command, made, say)
        return _open(made)


def _compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    raise KernelsError(
        f"no C++ compiler was found ({', '.join(names)}): install one, for example with "
        "'apt-get install g++', and start again"
    )


def _more_flags() -> list[str]:
    flags = os.environ.get(MORE_FLAGS, "")
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise KernelsError(f"{MORE_FLAGS} cannot be read ({error}): {flags}") from error


def _key(command: list[str]) -> str:
    """What the result depends on: the sources, the compiler, and this machine's instructions."""
    compiler, *flags = command
    digest = hashlib.sha256()
    for source in sorted(SOURCES.glob("*.h")) + sorted(SOURCES.glob("*.cpp")):
        digest.update(source.name.encode() + source.read_bytes())
    digest.update(" ".join(flags).encode() + _version(compiler).encode())
    digest.update(_processor().encode())
    return digest.hexdigest()[:20]


def _version(compiler: str) -> str:
    try:
        shown = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise KernelsError(f"{compiler} does not run: {error}") from error
    return shown.stdout


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    kinds = ("vendor_id", "cpu family", "model\t", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))


def _compile(command: list[str], target: Path, say: Callable[[str], None]) -> None:
    compiler = command[0]
    say(f"compiling the CPU kernels with {compiler} (once, some 30 seconds)")
    # Compiled beside its place and moved there whole: nobody ever loads half a library.
    handle, made = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(handle)
    command = [*command, "-o", made, str(SOURCES / "api.cpp")]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        if shown.returncode:
            complaint = next((line for line in shown.stderr.splitlines() if "error" in line), "")
            raise KernelsError(
                f"{compiler} cannot compile the CPU kernels (C++20 is needed): {complaint}"
            )
        os.replace(made, target)
    except (OSError, subprocess.SubprocessError) as error:
        raise KernelsError(f"{compiler} cannot compile the CPU kernels: {error}") from error
    finally:
        Path(made).unlink(missing_ok=True)


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelsError(f"{path} cannot be loaded: {error}") from error
