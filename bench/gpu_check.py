"""What can only be seen on a GPU: tests marked ``gpu``, and how near kernels come to its memory.

    python -m bench.gpu_check            # correctness; bench/results/gpu-check.json
    python -m bench.gpu_check --bench    # speed;       bench/results/gpu-bench.json
    python -m bench.gpu_check --wheels   # what to bring to a machine without network

Ends with status 2 where there is no GPU, and 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
REPEATS = 50

WHEELS = """\
# On a machine with network, of the same system and Python as the one with the GPU:
#   make -s gpu-wheels > wheels.txt && pip download -d wheels -c constraints.txt -r wheels.txt
# Then there, in a fresh environment, from a copy of this repository:
#   pip install --no-index --find-links wheels setuptools
#   pip install --no-index --find-links wheels --no-build-isolation -e '.[dev,gpu]'
# The CUDA toolkit (nvcc, of the major version that torch is built for) is no wheel: FlashInfer
# compiles its kernels on first use. radixserve doctor says whether all is there."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Checks and benchmarks that need a GPU.")
    parser.add_argument("--bench", action="store_true", help="speed instead of correctness")
    parser.add_argument("--wheels", action="store_true", help="list what has to be installed")
    parser.add_argument("--output", type=Path, help="default: bench/results/gpu-*.json")
    chosen = parser.parse_args()
    if chosen.wheels:
        print("\n".join([WHEELS, *wheels()]))  # noqa: T201
        return
    import torch

    if not torch.cuda.is_available():
        print("This needs a GPU, and torch sees none here: run it on one.", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    kind = "bench" if chosen.bench else "check"
    report = {"where": where(), "results": measured() if chosen.bench else checked()}
    output = chosen.output or RESULTS / f"gpu-{kind}.json"
    output.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
    for line in shown(report["results"]):
        print(line)  # noqa: T201
    print(f"written to {output}")  # noqa: T201
    sys.exit(any(each.get("outcome") == "failed" for each in report["results"]))


def wheels() -> list[str]:
    """Requirements of the package with its extras ``dev`` and ``gpu``."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = told["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    wanted = [*told["build-system"]["requires"], *project["dependencies"]]
    return [*wanted, *extras["dev"], *extras["gpu"]]


def where() -> dict[str, Any]:
    """The machine, its GPU, and what of a GPU's needs is there."""
    from bench.machine import machine
    from radixserve.model.facts import gpu_facts, reach_tools
    from radixserve.model.startup import gpu_checks

    reach_tools()
    return {
        **machine(),
        "checks": {check.name: [check.state, check.found] for check in gpu_checks(gpu_facts())},
    }


# Correctness


def checked() -> list[dict[str, Any]]:
    """Every test marked ``gpu``, with its outcome."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", f"--junitxml={report}"]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if not report.is_file():
            return [{"name": "pytest", "outcome": "failed", "why": f"status {done.returncode}"}]
        return outcomes(report.read_text(encoding="utf-8"))


def outcomes(junit: str) -> list[dict[str, Any]]:
    """The tests in a report of pytest; one that finds none has failed."""
    found = []
    for case in ElementTree.fromstring(junit).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        outcome, why = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcome = "skipped" if child.tag == "skipped" else "failed"
                why = child.get("message", "")
        seconds = float(case.get("time", 0))
        found.append({"name": name, "outcome": outcome, "seconds": seconds, "why": why})
    return found or [{"name": "pytest", "outcome": "failed", "why": "no test is marked gpu"}]


def shown(results: list[dict[str, Any]]) -> list[str]:
    """What people want to read of them: numbers, or what did not pass and the sum."""
    if "outcome" not in results[0]:
        return [
            f"{each['name']:34} {each['microseconds']:9.1f} us {each['gb_per_s']:8.0f} GB/s "
            f"{each['of_copy']:5.0%} of a copy"
            for each in results
        ]
    counts: dict[str, int] = {}
    for each in results:
        counts[each["outcome"]] = counts.get(each["outcome"], 0) + 1
    odd = [f"{r['outcome']} {r['name']}: {r['why']}" for r in results if r["outcome"] != "passed"]
    return [*odd, ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))]


# Speed: the ratio to a plain copy on the same GPU, in the same run


def measured() -> list[dict[str, Any]]:
    """Kernels that move memory, beside a copy that does nothing else."""
    rows = [_plain_copy(), *_page_copies(), *_appends()]
    best = rows[0]["gb_per_s"]
    return [{**row, "of_copy": row["gb_per_s"] / best} for row in rows]


def _plain_copy() -> dict[str, Any]:
    import torch

    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return _row("copy of 1 GiB", 2 * source.nbytes, lambda: target.copy_(source))


def _page_copies() -> list[dict[str, Any]]:
    """Pages of Llama-8B: 32 layers of 16 tokens, 8 heads and 128 elements, bf16."""
    import torch

    from radixserve.kernels.page_copy import copy_pages, copy_pages_in_torch

    kv = torch.zeros(32, 1100, 2, 16, 8, 128, dtype=torch.bfloat16, device="cuda")
    rows = []
    for count in (1, 64, 512):
        copies = [(1 + i, 550 + i) for i in range(count)]
        moved = 2 * count * kv[:, 0].numel() * kv.itemsize
        rows += [
            _row(f"{count} pages, Triton", moved, lambda pairs=copies: copy_pages(kv, pairs)),
            _row(
                f"{count} pages, torch", moved, lambda pairs=copies: copy_pages_in_torch(kv, pairs)
            ),
        ]
    return rows


def _appends() -> list[dict[str, Any]]:
    """Keys and values of one layer of Llama-8B from bf16 to FP8."""
    import torch

    from radixserve.kernels.kv_append import append_fp8, append_fp8_in_torch

    kv = torch.zeros(1100, 2, 16, 8, 128, dtype=torch.float8_e4m3fn, device="cuda")
    rows = []
    for tokens in (1, 256, 8192):
        key = torch.randn(tokens, 8, 128, dtype=torch.bfloat16, device="cuda")
        slots = torch.randperm(16 * 1100, device="cuda")[:tokens]
        where = (slots // 16, slots % 16)
        moved = 2 * key.numel() * 3

        def triton(key: torch.Tensor = key, where: tuple[torch.Tensor, ...] = where) -> None:
            append_fp8(kv, key, key, *where, key_scale=0.5, value_scale=0.5)

        def plain(key: torch.Tensor = key, where: tuple[torch.Tensor, ...] = where) -> None:
            append_fp8_in_torch(kv, key, key, *where, 0.5, 0.5)

        rows += [
            _row(f"FP8 of {tokens} tokens, Triton", moved, triton),
            _row(f"FP8 of {tokens} tokens, torch", moved, plain),
        ]
    return rows


def _row(name: str, moved: int, run: Callable[[], object]) -> dict[str, Any]:
    """The median time of ``run``, which reads and writes ``moved`` bytes."""
    import torch

    for _ in range(3):  # compiles
        run()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    middle = median(times)
    return {"name": name, "microseconds": middle, "gb_per_s": moved / middle / 1000}


if __name__ == "__main__":
    main()
