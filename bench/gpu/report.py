"""What a run is written as: JSON, and lines for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Numbers = dict[str, Any]


def write(report: Numbers, path: Path) -> None:
    """``report`` as JSON, all or nothing: it is written again and again while a run goes on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def told(value: float | None, unit: str) -> str:
    """A ratio as people read it."""
    if value is None:
        return "failed"
    return f"{value:.1%}" if unit == "%" else f"{value:.1f}x"


def lines(rows: Sequence[Numbers], kernels: Sequence[Numbers]) -> list[str]:
    """The table, and below it the kernels."""
    shown = []
    for row in rows:
        verdict = "met" if row["met"] else "MISSED" if row["failed"] is None else "FAILED"
        wanted = f"{row['rule']} {told(row['target'], row['unit'])}"
        shown.append(f"{verdict:6} {told(row['ratio'], row['unit']):>8} ({wanted}) {row['name']}")
        if row["failed"] is not None:
            shown.append(f"       {row['failed']}")
    for row in kernels:
        if "failed" in row:
            shown.append(f"FAILED {row['name']}: {row['failed']}")
            continue
        share = "" if row["of_copy"] is None else f" {row['of_copy']:5.0%} of a copy"
        shown.append(
            f"{row['name']:34} {row['microseconds']:9.1f} us {row['gb_per_s']:8.0f} GB/s{share}"
        )
    return shown
