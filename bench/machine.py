"""Where a benchmark ran, for the head of its results, and how its options are read."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """The machine, its load and the time."""
    return {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "load_at_start": os.getloadavg(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def cpu() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def names(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """For argparse: a list of ``known`` names, separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        unknown = [name for name in found if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return found

    return parse
