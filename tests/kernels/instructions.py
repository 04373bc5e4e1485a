"""The native kernels as they are made for older processors than the one at hand."""

from __future__ import annotations

import platform

import pytest

from radixserve.attention import cpu
from radixserve.folders import cache_directory
from radixserve.kernels.cpu import build
from radixserve.kernels.cpu.library import CpuKernels

HERE = "this processor"
OLDER = {
    "avx512 without lookups of bytes": "-mno-avx512vbmi",
    "avx512 without bf16": "-mno-avx512bf16",
    "avx2": "-mno-avx512f",
    "sse2": "-march=x86-64",
}


def made_for(processor: str) -> CpuKernels:
    """The kernels for ``HERE`` or one of ``OLDER``; skips the test where they cannot be made."""
    native = cpu.kernels()
    if native is None:
        pytest.skip("there is no C++ compiler to make the native kernels with")
    if processor == HERE:
        return native
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("what it leaves out are instructions of x86")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(build.MORE_FLAGS, f"{OLDER[processor]} -O1")
        return CpuKernels(build.load(cache_directory() / "kernels", lambda said: None))
