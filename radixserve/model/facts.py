"""What there is on this machine for a model to run with."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from radixserve.errors import first_line
from radixserve.folders import cache_directory
from radixserve.kernels.cpu import build
from radixserve.kernels.cpu.library import CpuKernels
from radixserve.model.memory import free_memory

LIMIT = 60
"""Seconds that a tool may take to tell its version."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as torch sees it; memory in bytes."""

    name: str
    capability: tuple[int, int]
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What computing on a GPU needs. Versions as they are written, None: not there."""

    torch: str
    cuda: str | None
    """What torch was built for."""
    driver: str | None
    """The newest CUDA that the driver runs."""
    gpus: tuple[Gpu, ...]
    flashinfer: str | None
    triton: str | None
    nvcc: str | None
    ninja: str | None
    """Where it is."""
    compiler: str | None
    """The C++ compiler that nvcc and we call."""
    fault: str | None = None
    """Why FlashInfer, which is there, cannot be imported."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that ``radixserve doctor`` looks at. Sizes in bytes."""

    python: str
    gpu: GpuFacts
    kernels: str
    """What the native kernels were compiled for, or why there are none."""
    has_kernels: bool
    memory: int
    cache: Path
    """Where downloads, conversions and compiled kernels are kept."""
    disk: int
    """Free where ``cache`` is."""
    hub: Path
    """Where models of the Hugging Face hub are kept."""
    hub_writable: bool


def reach_tools() -> None:
    """Put the programs of this Python's environment on PATH.

    FlashInfer calls ``ninja`` by its bare name, and an environment need not be activated.
    """
    folder = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    if folder not in path.split(os.pathsep):
        os.environ["PATH"] = path + os.pathsep + folder


def gpu_facts() -> GpuFacts:
    """Read them, in less than a second, unless FlashInfer is imported, which takes some."""
    nvcc = _nvcc()
    compiler = os.environ.get("CXX")
    names = (compiler,) if compiler else build.COMPILERS
    gpus, flashinfer = _gpus(), _version("flashinfer-python")
    return GpuFacts(
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        driver=driver(),
        gpus=gpus,
        flashinfer=flashinfer,
        triton=_version("triton"),
        nvcc=_release(nvcc) if nvcc else None,
        ninja=shutil.which("ninja"),
        compiler=next((found for name in names if (found := shutil.which(name))), None),
        fault=_fault("flashinfer") if gpus and flashinfer else None,
    )


def gather() -> Facts:
    """All facts. The native kernels are compiled if they never were, which takes some seconds."""
    from huggingface_hub import constants

    cache, hub = cache_directory(), Path(constants.HF_HUB_CACHE)
    try:
        kernels = CpuKernels(build.load(cache / "kernels", lambda line: None)).features
        has_kernels = True
    except build.KernelsError as error:
        kernels, has_kernels = str(error), False
    return Facts(
        python=platform.python_version(),
        gpu=gpu_facts(),
        kernels=kernels,
        has_kernels=has_kernels,
        memory=free_memory(torch.device("cpu")),
        cache=cache,
        disk=shutil.disk_usage(cache).free,
        hub=hub,
        hub_writable=_writable(hub),
    )


def _gpus() -> tuple[Gpu, ...]:
    if not torch.cuda.is_available():
        return ()
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        capability = torch.cuda.get_device_capability(index)
        found.append(Gpu(torch.cuda.get_device_name(index), capability, free, total))
    return tuple(found)


def driver() -> str | None:
    """The newest CUDA that the driver runs, as it says itself: torch says nothing where it cannot
    use it. None where there is no driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(number)) or not number.value:
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def _nvcc() -> str | None:
    """The one that FlashInfer calls."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return shutil.which(str(Path(home) / "bin" / "nvcc"))
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def _release(nvcc: str) -> str | None:
    try:
        shown = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, timeout=LIMIT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"release (\d+\.\d+)", shown.stdout)
    return found[1] if found else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _fault(module: str) -> str | None:
    """Why ``module`` cannot be imported; None if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # it has failed in more ways than ImportError
        return first_line(error)
    return None


def _writable(folder: Path) -> bool:
    """Whether it can be written, or made."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return os.access(there, os.W_OK)
