"""The kernels of FlashInfer that we ask for exist, and become machine code for an H200.

That needs nvcc and no GPU; linking and running need one. Each takes twenty seconds, or
minutes beside other work, so that these tests are run apart: ``make test-nvcc``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flashinfer", reason="flashinfer-python is not installed")
pytestmark = [
    pytest.mark.nvcc,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH"),
]

KERNELS = {
    "decode": "attention.gen_batch_decode_module(bf16, bf16, bf16, i32, 128, 128, 0, False, False)",
    "prefill": (
        "attention.gen_batch_prefill_module"
        "('fa2', bf16, bf16, bf16, i32, 128, 128, 0, False, False, False)"
    ),
    "prefill on float8 KV": (
        "attention.gen_batch_prefill_module"
        "('fa2', bf16, e4m3, bf16, i32, 128, 128, 0, False, False, False)"
    ),
    "append": "page.gen_page_module()",
    "merge": "cascade.gen_cascade_module()",
    "norms": "norm.gen_norm_module()",
    "rotary": "rope.gen_rope_module()",
    "gated SiLU": "activation.gen_act_and_mul_module('silu')",
}

UNASKED = "ragged|mask_[23]"
"""Parts of a module that nobody here calls: prompts without pages, masks of the caller's own."""

PROGRAM = """
import re, subprocess, sys
import torch
from flashinfer.jit import activation, attention, cascade, norm, page, rope
bf16, e4m3, i32 = torch.bfloat16, torch.float8_e4m3fn, torch.int32
spec = eval(sys.argv[1])
spec.write_ninja()
built = [line.split()[1].rstrip(":") for line in open(spec.ninja_path) if line.startswith("build ")]
objects = [each for each in built if each.endswith(".o") and not re.search(sys.argv[2], each)]
subprocess.run(["ninja", "-f", str(spec.ninja_path), *objects], cwd=spec.build_dir, check=True)
print(len(objects))
"""


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_compiles_for_compute_capability_9(kernel: str, tmp_path: Path):
    binaries = str(Path(sys.executable).parent)  # ninja comes with the package
    environment = os.environ | {
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path),
        "PATH": binaries + os.pathsep + os.environ["PATH"],
    }
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, KERNELS[kernel], UNASKED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "cublasLt.h: No such file" in made.stdout:
        pytest.skip("this CUDA toolkit is without the headers of cuBLAS")
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    objects = list(tmp_path.rglob("*.o"))
    assert objects
    assert int(made.stdout.split()[-1]) == len(objects)
    assert any(path.name.endswith(".cuda.o") for path in objects)
