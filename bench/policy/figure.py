"""The picture of cache policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from bench import plot

Numbers = dict[str, Any]

RULES = (
    "adaptive",
    "hints",
    "adaptive, told of ends",
    "hints, tools only",
    "lru",
    "hints, every other session",
)
COLOURS = dict(zip(RULES, plot.COLOURS, strict=True)) | {"optimum": "#37352f"}


def draw(results: Numbers, path: Path) -> Path:
    """What is closed of the gap, on paper and in the cache that serves; hits over fixed times; gain
    over sizes; cost."""
    figure, axes = plot.panels(6, title="cache policies, replayed")
    if results["coding"].get("odd"):
        _closed(axes[0], results["coding"]["odd"], "closed", "on paper")
        _closed(axes[1], results["coding"]["odd"], "closed_served", "served")
    _keeping(axes[2], results["keeping"])
    for panel, where, title in (
        (axes[3], "paper", "gain over LRU, on paper"),
        (axes[4], "served", "gain over LRU, in the cache that serves"),
    ):
        _gain(panel, results["sizes"], where, title)
    if results.get("cost"):
        _cost(axes[5], results["cost"])
    return plot.save(figure, path)


def _name(entry: Numbers) -> str:
    return f"{entry['opened']} open\n{entry['tokens'] / 1e6:g} M"


def _closed(axes: Axes, cases: list[Numbers], key: str, title: str) -> None:
    plot.style(axes, title=f"closed of LRU's gap to the optimum, {title}", y="%")
    rules = list(cases[0][key])
    width = 0.8 / len(rules)
    for number, rule in enumerate(rules):
        places = [place + width * (number - (len(rules) - 1) / 2) for place in range(len(cases))]
        heights = [100 * each[key][rule] for each in cases]
        axes.bar(places, heights, width, label=rule, color=COLOURS[rule])
    axes.set_xticks(range(len(cases)), [_name(each) for each in cases])
    axes.set_ylim(top=110)
    axes.legend(fontsize=6, frameon=False, ncols=2, loc="upper left")


def _keeping(axes: Axes, curves: Numbers) -> None:
    plot.style(
        axes,
        title="everything kept for a fixed time; dashed: LRU",
        x="seconds",
        y="% of prompt tokens",
    )
    for colour, (name, curve) in zip(plot.COLOURS, curves.items(), strict=False):
        hits = [100 * each for each in curve["hits"]]
        axes.plot(curve["seconds"], hits, color=colour, marker="o", markersize=3, label=name)
        axes.axhline(100 * curve["lru"], color=colour, linestyle="--", linewidth=0.9)
    axes.set_xscale("log")
    axes.set_xticks([5, 15, 30, 60, 120, 300], ["5", "15", "30", "60", "120", "300"])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=6, frameon=False)


def _gain(axes: Axes, sizes: Numbers, where: str, title: str) -> None:
    plot.style(axes, title=title, x="million tokens", y="points of hits")
    for name, over in sizes.items():
        pairs = zip(over[where]["lru"], over[where]["adaptive"], strict=True)
        gained = [100 * (adaptive - lru) for lru, adaptive in pairs]
        axes.plot(
            [each / 1e6 for each in over["tokens"]], gained, marker="o", markersize=2, label=name
        )
    axes.axhline(-0.5, color=plot.LIMIT, linestyle="--", linewidth=1, label="most it may lose")
    axes.set_xscale("log")
    axes.set_xticks([0.2, 0.5, 1, 3, 12], ["0.2", "0.5", "1", "3", "12"])
    axes.minorticks_off()
    axes.set_ylim(-2, 22)
    axes.legend(fontsize=6, frameon=False)


def _cost(axes: Axes, cost: Numbers) -> None:
    plot.style(axes, title="taking a page that has to be evicted, median", y="µs")
    found = cost["microseconds"]
    axes.bar(list(found), list(found.values()), 0.5, color=[COLOURS[name] for name in found])
