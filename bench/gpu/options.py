"""What ``python -m bench.gpu_check --bench`` can be told. Imports nothing that is not in Python."""

from __future__ import annotations

import argparse

from bench.gpu.geometry import BUILT_IN, Geometry
from bench.gpu.sizes import Sizes
from bench.machine import names

USUAL = Sizes()
DEVICES = ("cuda", "cpu")
SUBJECTS = ("device", "cascade", "plain", "transformers", "kernels")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What ``--bench`` can be told beside that."""
    group = parser.add_argument_group("with --bench")
    known = ", ".join(BUILT_IN)
    group.add_argument("--device", choices=DEVICES, default="cuda", help="cpu: a dry run")
    group.add_argument(
        "--geometry", default="llama-3.1-8b", help=f"{known}, or a config.json of Llama's family"
    )
    group.add_argument(
        "--shrink", type=int, default=1, metavar="N", help="divide the lengths of all prompts by N"
    )
    group.add_argument("--rows", type=int, default=USUAL.rows, help="requests that decode at once")
    group.add_argument("--steps", type=int, default=USUAL.steps, help="steps timed as one")
    group.add_argument("--repeats", type=int, default=USUAL.repeats)
    group.add_argument(
        "--only", type=names(SUBJECTS), default=SUBJECTS, metavar="NAMES",
        help=f"measure on these alone: {','.join(SUBJECTS)}",
    )  # fmt: skip
    group.add_argument(
        "--minutes", type=float, default=8.0, help="what has not begun by then is not measured"
    )


def chosen(options: argparse.Namespace) -> tuple[Geometry, Sizes]:
    """What ``options`` ask for.

    Raises:
        OSError, ValueError: there is no such geometry, or a size is less than one.
    """
    if min(options.shrink, options.rows, options.steps, options.repeats) < 1:
        raise ValueError("--shrink, --rows, --steps and --repeats are at least 1")
    sizes = Sizes(rows=options.rows, steps=options.steps, repeats=options.repeats)
    if sizes.rows % sizes.groups:
        raise ValueError(f"--rows must be a multiple of {sizes.groups}")
    return Geometry.named(options.geometry), sizes.shrunk(options.shrink)
