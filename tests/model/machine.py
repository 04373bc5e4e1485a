"""What is known of a machine that lacks nothing."""

from __future__ import annotations

from pathlib import Path

from radixserve.model.facts import Facts, Gpu, GpuFacts

GIB = 1 << 30
H200 = Gpu("NVIDIA H200", (9, 0), 138 * GIB, 140 * GIB)

GOOD = GpuFacts(
    torch="2.13.0+cu130",
    cuda="13.0",
    driver="13.1",
    gpus=(H200,),
    flashinfer="0.7.4",
    triton="3.9.0",
    nvcc="13.0",
    ninja="/usr/bin/ninja",
    compiler="/usr/bin/c++",
)
ALL = Facts(
    python="3.11.7",
    gpu=GOOD,
    kernels="avx512",
    has_kernels=True,
    memory=16 * GIB,
    cache=Path("/cache"),
    disk=100 * GIB,
    hub=Path("/hub"),
    hub_writable=True,
)
