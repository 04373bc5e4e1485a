"""What can only be seen on a GPU: tests marked ``gpu``, and how near kernels come to its memory.

    python -m bench.gpu_check            # correctness; bench/results/gpu-check.json
    python -m bench.gpu_check --bench    # speed;       bench/results/gpu-bench.json
    python -m bench.gpu_check --wheels   # what to bring to a machine without network

Ends with status 0 where every test passed or every target was met, 1 where one failed or was
missed, and 2 where there is no GPU (or an option cannot work). Without a GPU the benchmark can be
tried out::

    python -m bench.gpu_check --bench --device cpu --geometry tiny --shrink 32 --output dry.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bench.gpu.options import add_options

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"

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
    add_options(parser)
    chosen = parser.parse_args()
    if chosen.wheels:
        print("\n".join([WHEELS, *wheels()]))  # noqa: T201
        return
    if chosen.device == "cpu" and not (chosen.bench and chosen.output):
        parser.error("--device cpu is a dry run of --bench, and needs --output")
    import torch

    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("This needs a GPU, and torch sees none here: run it on one.", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    if chosen.bench:
        from bench.gpu import run as speed

        try:
            met = speed.run(chosen, chosen.output or RESULTS / "gpu-bench.json", where())
        except (OSError, ValueError) as error:
            parser.error(str(error))
        sys.exit(not met)
    report = {"where": where(), "results": checked()}
    output = chosen.output or RESULTS / "gpu-check.json"
    output.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
    for line in shown(report["results"]):
        print(line)  # noqa: T201
    print(f"written to {output}")  # noqa: T201
    sys.exit(any(each["outcome"] == "failed" for each in report["results"]))


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
    """What people want to read of them: what did not pass, and the sum."""
    counts: dict[str, int] = {}
    for each in results:
        counts[each["outcome"]] = counts.get(each["outcome"], 0) + 1
    odd = [f"{r['outcome']} {r['name']}: {r['why']}" for r in results if r["outcome"] != "passed"]
    return [*odd, ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))]


if __name__ == "__main__":
    main()
