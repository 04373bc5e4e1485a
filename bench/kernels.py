"""Two states of the native CPU kernels in turns, on the demo model: prefill, and decoding alone::

    git worktree add ../before REVISION
    python -m bench.kernels ../before/kernels/cpu --dtype float32
    RADIXSERVE_CXXFLAGS=-mno-avx512f python -m bench.kernels ../before/kernels/cpu

The second is what a processor without AVX-512 would run, except that ``auto`` is the dtype of the
one at hand. Both states are called in the same process, through the Python of this one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from unittest import mock

from bench.machine import machine
from radixserve.attention import cpu
from radixserve.engine.llm import LLM
from radixserve.folders import cache_directory
from radixserve.kernels.cpu import build
from radixserve.kernels.cpu.library import CpuKernels
from radixserve.scheduling.sampling import SamplingParams

PROMPT, DECODED = 500, 64
"""Tokens."""


def compiled(sources: Path) -> CpuKernels:
    with mock.patch.object(build, "SOURCES", sources):
        return CpuKernels(build.load(cache_directory() / "kernels", log))


def model(kernels: CpuKernels, options: argparse.Namespace) -> LLM:
    """The demo model, computed by ``kernels``."""
    with mock.patch.object(cpu, "kernels", return_value=kernels):
        return LLM(
            dtype=options.dtype, threads=options.threads, quantization=options.quantization,
            num_pages=200, device="cpu",
        )  # fmt: skip


def log(line: str) -> None:
    sys.stderr.write(line + "\n")


def seconds(llm: LLM, prompt: list[int], answer: int) -> float:
    """Of a request that no cache knows, with ``answer`` tokens of answer."""
    llm.reset_prefix_cache()
    sampling = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
    start = perf_counter()
    llm.generate([prompt], sampling)
    return perf_counter() - start


def compare(before: LLM, now: LLM, repeats: int) -> dict[str, Any]:
    """Times and their ratios, of both in turns."""
    found: dict[str, Any] = {}
    prompt = [100 + 7 * i for i in range(PROMPT)]
    for name, length, answer in (("prefill", PROMPT, 1), ("decode", 1, DECODED)):
        turns = [
            (seconds(before, prompt[:length], answer), seconds(now, prompt[:length], answer))
            for _ in range(1 + repeats)
        ][1:]  # the first one warms up
        found[name] = {
            "before_s": median(old for old, _ in turns),
            "now_s": median(new for _, new in turns),
            "times_as_fast": median(old / new for old, new in turns),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.kernels", description=__doc__)
    parser.add_argument("before", type=Path, help="sources to compare with: .../kernels/cpu")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--quantization", default="none", choices=("none", "int8"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if not (options.before / "api.cpp").is_file():
        parser.error(f"{options.before} holds no kernels: there is no api.cpp")
    before, now = (compiled(sources) for sources in (options.before, build.SOURCES))
    found = {
        "machine": machine(),
        "kernels": now.features,
        "dtype": options.dtype,
        "threads": options.threads,
        "quantization": options.quantization,
        **compare(model(before, options), model(now, options), options.repeats),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
