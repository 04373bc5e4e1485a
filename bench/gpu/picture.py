"""The targets as bars: how much of each was reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import plot
from bench.gpu.report import told

Numbers = dict[str, Any]

MET = plot.COLOURS[2]
MOST = 4.0


def reached(row: Numbers) -> float:
    """How much of its target a row reached: 1 and more is all of it; 0 where it failed.

    Where the ratio has to be small, at most ``MOST``: a bar has to end somewhere.
    """
    ratio, target = row["ratio"], row["target"]
    if ratio is None:
        return 0.0
    if row["rule"] == "at most":
        return float(target / max(ratio, target / MOST))
    return float(ratio / target)


def draw(report: Numbers, path: Path) -> Path:
    """Each target as a bar: how much of it was reached, on a scale of powers of two."""
    rows = report["results"][::-1]
    title = f"Of the targets for one H200, on {report['device']}"
    figure, [axes] = plot.panels(1, title=title)
    figure.set_size_inches(10, 1 + 0.4 * len(rows))
    shares = [reached(row) for row in rows]
    # A bar on a logarithmic scale begins somewhere; what failed has none.
    least = min([0.5, *(share / 2 for share in shares if share)])
    colours = [MET if row["met"] else plot.LIMIT for row in rows]
    axes.barh(range(len(rows)), [max(share, least) - least for share in shares], left=least,
              color=colours, height=0.6)  # fmt: skip
    for at, (row, share) in enumerate(zip(rows, shares, strict=True)):
        text = told(row["ratio"], row["unit"])
        axes.text(max(share, least), at, f" {text}", va="center", fontsize=7)
    axes.axvline(1, color=plot.LIMIT, linestyle="--", linewidth=1)
    plot.style(axes, x="share of the target")
    axes.set_xscale("log", base=2)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=7)
    return plot.save(figure, path)
