"""Whether what there is will do, and what to do where it will not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from radixserve.errors import ConfigError
from radixserve.model.facts import Facts, GpuFacts

FLASHINFER = ((0, 6, 13), (0, 8))
"""The first version whose calls are ours, and the first that nobody has looked at."""
SUPPORTED = "{} or newer, below {}".format(*(".".join(map(str, each)) for each in FLASHINFER))
TRITON = (3, 4)
CAPABILITY = (7, 5)
"""Turing: the oldest that FlashInfer compiles for."""
LITTLE_MEMORY = 2 << 30
LITTLE_DISK = 2 << 30

State = Literal["ok", "missing", "not needed"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of ``radixserve doctor``."""

    name: str
    state: State
    found: str
    remedy: str = ""
    """What to do, where something is missing."""


def checks(facts: Facts) -> list[Check]:
    """All of them, those of a GPU first."""
    gib = 1 << 30
    return [
        Check("Python", "ok", facts.python),
        *gpu_checks(facts.gpu),
        _check(
            "native kernels",
            facts.has_kernels,
            facts.kernels,
            "without them models run in plain torch on a CPU, several times slower",
        ),
        _check(
            "memory",
            facts.memory >= LITTLE_MEMORY,
            f"{facts.memory / gib:.1f} GiB free",
            "end other programs, or raise the limit of the container",
        ),
        _check(
            "disk",
            facts.disk >= LITTLE_DISK,
            f"{facts.disk / gib:.1f} GiB free at {facts.cache}",
            "free some, or set XDG_CACHE_HOME to a folder on another disk",
        ),
        _check(
            "model cache",
            facts.hub_writable,
            str(facts.hub),
            "it cannot be written: set HF_HOME to a folder that can",
        ),
    ]


def gpu_checks(facts: GpuFacts) -> list[Check]:
    """Those that computing on a GPU needs; without a driver there is no GPU to compute on."""
    compiler = _check(
        "C++ compiler",
        facts.compiler is not None,
        facts.compiler or "none",
        "install one, for example with: apt-get install g++",
    )
    if facts.driver is None and not facts.gpus:
        return [
            Check("torch", "ok", facts.torch),
            Check("GPU", "not needed", "no NVIDIA driver: the CPU computes"),
            *(
                Check(name, "not needed", found or "none")
                for name, found in (
                    ("FlashInfer", f"{facts.flashinfer or 'none'} (supported: {SUPPORTED})"),
                    ("Triton", facts.triton),
                    ("nvcc", facts.nvcc),
                    ("ninja", facts.ninja),
                )
            ),
            compiler,
        ]
    lines: list[Callable[[GpuFacts], Check]] = [
        _torch, _driver, _gpu, _flashinfer, _triton, _nvcc, _ninja,
    ]  # fmt: skip
    return [*(line(facts) for line in lines), compiler]


def require_gpu(facts: GpuFacts) -> None:
    """Refuse to start on a GPU with what is known not to work.

    Raises:
        ConfigError: everything that is missing, each with its remedy.
    """
    missing = [check for check in gpu_checks(facts) if check.state == "missing"]
    if missing:
        said = "; ".join(f"{check.name}: {check.found} ({check.remedy})" for check in missing)
        raise ConfigError(
            f"this GPU cannot be used as things are. {said}. radixserve doctor shows all; "
            "--device cpu does without."
        )


def why_no_gpu(facts: GpuFacts) -> str:
    """Where torch sees no GPU: the cause, and what to do about it."""
    lines = (line(facts) for line in (_torch, _driver, _gpu))
    cause = next(line for line in lines if line.state == "missing")
    return f"{cause.name}: {cause.found} ({cause.remedy})"


def _torch(facts: GpuFacts) -> Check:
    found = f"{facts.torch}, " + (f"CUDA {facts.cuda}" if facts.cuda else "built without CUDA")
    remedy = "install a build of torch with CUDA: https://pytorch.org/get-started/locally"
    return _check("torch", facts.cuda is not None, found, remedy)


def _driver(facts: GpuFacts) -> Check:
    """A driver runs what was built for its own major version or an older one."""
    if facts.driver is None:
        return Check("driver", "missing", "none", "install NVIDIA's driver")
    found = f"runs CUDA up to {facts.driver}"
    if facts.cuda is not None and _numbers(facts.cuda)[0] > _numbers(facts.driver)[0]:
        found += f", torch needs {facts.cuda}"
        older = f"a build of torch for CUDA {_numbers(facts.driver)[0]}"
        return Check("driver", "missing", found, f"update the driver, or install {older}")
    return Check("driver", "ok", found)


def _gpu(facts: GpuFacts) -> Check:
    if not facts.gpus:
        remedy = "see what nvidia-smi says; a container needs --gpus all; is CUDA_VISIBLE_DEVICES "
        return Check("GPU", "missing", "torch sees none", remedy + "set?")
    gib = 1 << 30
    shown = [
        f"{gpu.name}, {gpu.free / gib:.1f} of {gpu.total / gib:.1f} GiB free" for gpu in facts.gpus
    ]
    old = [gpu.name for gpu in facts.gpus if gpu.capability < CAPABILITY]
    wanted = ".".join(map(str, CAPABILITY))
    remedy = f"compute capability {wanted} is needed: hide {', '.join(old)} in CUDA_VISIBLE_DEVICES"
    return _check("GPU", not old, "; ".join(shown), remedy)


def _flashinfer(facts: GpuFacts) -> Check:
    first, end = FLASHINFER
    version = facts.flashinfer
    package = f"'flashinfer-python>={_text(first)},<{_text(end)}'"
    if version is None or not first <= _numbers(version) < end:
        remedy = f"{SUPPORTED}, is needed: pip install {package}"
        return Check("FlashInfer", "missing", version or "none", remedy)
    if facts.fault is not None:
        found = f"{version}, which cannot be imported: {facts.fault}"
        remedy = f"install it anew: pip install --force-reinstall {package}"
        return Check("FlashInfer", "missing", found, remedy)
    return Check("FlashInfer", "ok", f"{version} (supported: {SUPPORTED})")


def _triton(facts: GpuFacts) -> Check:
    fits = facts.triton is not None and _numbers(facts.triton) >= TRITON
    remedy = f"{_text(TRITON)} or newer is needed: pip install 'triton>={_text(TRITON)}'"
    return _check("Triton", fits, facts.triton or "none", remedy)


def _nvcc(facts: GpuFacts) -> Check:
    """What it makes is linked to the runtime that torch has loaded."""
    if facts.nvcc is None:
        wanted = f" {facts.cuda}" if facts.cuda else ""
        remedy = f"FlashInfer compiles its kernels: install the CUDA toolkit{wanted}, or set "
        return Check("nvcc", "missing", "none", remedy + "CUDA_HOME to where it is")
    if facts.cuda is not None and _numbers(facts.nvcc)[0] != _numbers(facts.cuda)[0]:
        remedy = f"install the CUDA toolkit {facts.cuda}, or set CUDA_HOME to where it is"
        return Check("nvcc", "missing", f"{facts.nvcc}, torch has CUDA {facts.cuda}", remedy)
    return Check("nvcc", "ok", facts.nvcc)


def _ninja(facts: GpuFacts) -> Check:
    remedy = "FlashInfer compiles its kernels with it: pip install ninja"
    return _check("ninja", facts.ninja is not None, facts.ninja or "none on PATH", remedy)


def _check(name: str, fits: bool, found: str, remedy: str) -> Check:
    return Check(name, "ok", found) if fits else Check(name, "missing", found, remedy)


def _numbers(version: str) -> tuple[int, ...]:
    """``0.7.4rc1`` as (0, 7, 4)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else (0,)


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
