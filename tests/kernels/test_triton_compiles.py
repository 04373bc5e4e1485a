"""The kernels of the GPU become machine code, which needs no GPU: the interpreter takes more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install triton")

PROGRAM = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from radixserve.kernels.triton import kv_append, page_copy

def compile(kernel, kinds, **constants):
    signature = dict(zip(kernel.arg_names, kinds)) | dict.fromkeys(constants, "constexpr")
    assert set(signature) == set(kernel.arg_names), signature
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    options = {"enable_fp_fusion": False}
    made = triton.compile(ASTSource(kernel, signature, constants), target=target, options=options)
    assert made.asm["cubin"]

for word in ("i64", "i32", "i16", "u8"):
    compile(page_copy._copy, [f"*{word}", "*i32", "i64", "i64", "i32", "i32"], BLOCK=1024)
for kind, ids in (("fp32", "*i64"), ("bf16", "*i32"), ("fp16", "*i64")):
    sources = ["*u8", f"*{kind}", f"*{kind}", ids, ids, "fp32", "fp32"]
    compile(kv_append._append, sources + ["i64"] * 5 + ["i32"] * 9, HEAD_DIM=128, BLOCK=1024)
"""


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_kernels_compile_for_gpus_since_ampere(capability: int, tmp_path: Path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(capability)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
