"""The run behind ``python -m bench.gpu_check --bench``: measure, judge, write."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic
from typing import Any

from bench.gpu import report
from bench.gpu.cases import Found, Start, cases, measure
from bench.gpu.device import DEVICES, Device
from bench.gpu.engine import Ours
from bench.gpu.geometry import Geometry
from bench.gpu.kernels import Kernels
from bench.gpu.options import chosen
from bench.gpu.peer import Transformers
from bench.gpu.process import Process
from bench.gpu.sizes import Sizes
from bench.gpu.targets import moved, row, targets
from bench.peer import mains

Numbers = dict[str, Any]
Say = Callable[[str], None]

PACKAGES = ("radixserve", "torch", "transformers", "flashinfer-python", "triton")


def subjects(geometry: Geometry, sizes: Sizes, device: Device) -> dict[str, Callable[[], Any]]:
    """What is measured, by name; each is made where it is to run."""
    return {
        "device": partial(Kernels, geometry, device),
        "cascade": partial(Ours, geometry, sizes, device),
        "plain": partial(Ours, geometry, sizes, device, cascade=False),
        "transformers": partial(Transformers, geometry, sizes, device),
        "kernels": partial(Kernels, geometry, device),
    }


def run(
    options: argparse.Namespace,
    output: Path,
    where: Numbers,
    start: Mapping[str, Start] | None = None,
) -> bool:
    """Measure, and write ``output`` after each case; whether all targets were met.

    ``start`` loads the subjects by name; None is each in a process of its own.

    Raises:
        OSError, ValueError: as ``chosen``.
    """
    geometry, sizes = chosen(options)
    device = DEVICES[options.device]()
    if start is None:
        made = subjects(geometry, sizes, device)
        start = {name: partial(Process, make) for name, make in made.items()}
    found, begun = Found(), monotonic()
    wanted = [case for case in cases(sizes) if case.subject in options.only]
    head = _head(options, geometry, sizes, where)

    def told() -> Numbers:
        return head | {
            "seconds": monotonic() - begun,
            "results": [row(target, found) for target in targets(geometry, sizes)],
            "kernels": moved(found),
            "subjects": found.about,
            "cases": found.numbers,
            "failures": found.failures,
        }

    until = begun + 60 * options.minutes
    measure(wanted, start, found, until=until, say=_say, done=lambda: report.write(told(), output))
    results = told()
    for line in report.lines(results["results"], results["kernels"]):
        print(line)  # noqa: T201
    mains.write(results, output, "bench.gpu.picture", mains.stderr())
    return all(each["met"] for each in results["results"]) and not found.failures


def _head(options: argparse.Namespace, geometry: Geometry, sizes: Sizes, where: Numbers) -> Numbers:
    return {
        "where": where,
        "command": " ".join(["python -m bench.gpu_check", *sys.argv[1:]]),
        "versions": {name: _version(name) for name in PACKAGES},
        "device": options.device,
        "geometry": {
            "name": geometry.name,
            "weight_bytes": geometry.weight_bytes,
            "kv_bytes_per_token": geometry.kv_bytes,
            "config": geometry.config,
        },
        "sizes": asdict(sizes),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201
