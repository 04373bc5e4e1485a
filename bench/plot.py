"""Small pictures beside the numbers: one look for every benchmark."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#787774", "#c14c8a")
LIMIT = "#d44c47"


def panels(count: int, *, columns: int = 3, title: str = "") -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` styled panels, row by row."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(4.4 * columns, 3.0 * rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure, [style(figure.add_subplot(rows, columns, n + 1)) for n in range(count)]


def style(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> Axes:
    """The common look of a panel; returns it."""
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(which="both", labelsize=7)
    axes.set_prop_cycle(color=COLOURS)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#e8e8e8", linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def limit(axes: Axes, x: list[float], y: list[float]) -> None:
    """The line that the curves of a panel should stay below."""
    axes.plot(x, y, color=LIMIT, linestyle="--", linewidth=1, label="target")


def save(figure: Figure, path: str | Path) -> Path:
    """Write ``figure`` as PNG; the folder is made when it is new. Returns the path."""
    path = Path(path).with_suffix(".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path
