"""The picture of a serving benchmark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from bench.plot import panels, save, style

Numbers = dict[str, Any]

SIDES = {"on": "cache on", "off": "cache off", "given": "given server"}


def draw(results: Numbers, path: Path) -> None:
    """Six panels: reuse in time and in tokens, arrivals, the knobs, KV memory."""
    state = "" if results["status"] == "complete" else f" ({results['status'][:60]})"
    machine = results["machine"]
    title = f"radixserve, {machine['cpu']}, {machine['cores']} cores{state}"
    figure, axes = panels(6, title=title)
    drawn: list[Callable[[Axes, Numbers], None]] = [
        _first_token,
        _hits,
        _arrivals,
        _page_size,
        _batching,
        _memory,
    ]
    for panel, each in zip(drawn, axes, strict=True):
        panel(each, results)
        if each.get_legend_handles_labels()[0]:
            each.legend(fontsize=7)
        if not each.has_data():
            each.text(0.5, 0.5, "not measured", ha="center", transform=each.transAxes)
    save(figure, path)


def _first_token(axes: Axes, results: Numbers) -> None:
    _pairs(axes, results, "ttft_p50")
    style(axes, title="First token, p50", y="seconds")


def _hits(axes: Axes, results: Numbers) -> None:
    found = {
        name: entry.get("on") or entry.get("given")
        for name, entry in results["workloads"].items()
        if entry.get("on") or entry.get("given")
    }
    places = range(len(found))
    for shift, key, label in ((-0.2, "hit_rate", "measured"), (0.2, "hit_rate_theory", "possible")):
        heights = [100 * (numbers[key] or 0) for numbers in found.values()]
        axes.bar([place + shift for place in places], heights, 0.4, label=label)
    axes.set_xticks(places, list(found), rotation=20)
    style(axes, title="Prompt tokens reused", y="%")


def _arrivals(axes: Axes, results: Numbers) -> None:
    for name, entry in results["arrivals"].items():
        for side, line in (("continuous", "-o"), ("static", "--s")):
            points = [(p["rate"], p[side]["normalized"]) for p in entry["rates"] if side in p]
            if points:
                axes.plot(*zip(*points, strict=True), line, label=f"{name}, {side}")
    style(axes, title="Poisson arrivals", x="requests a second", y="seconds a token (mean)")


def _page_size(axes: Axes, results: Numbers) -> None:
    points = results["sweeps"].get("page-size", [])
    axes.plot([p["value"] for p in points], [p["total_tokens_per_s"] for p in points], "-o")
    style(axes, title="Page size", x="tokens a page", y="tokens a second, prompt and answer")
    if points:
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)


def _batching(axes: Axes, results: Numbers) -> None:
    for knob in ("max-num-seqs", "max-num-batched-tokens"):
        points = results["sweeps"].get(knob, [])
        if not points:
            continue
        x = [p["total_tokens_per_s"] for p in points]
        y = [p["e2e_p99"] for p in points]
        axes.plot(x, y, "-o", label=knob)
        for point, at, height in zip(points, x, y, strict=True):
            axes.annotate(str(point["value"]), (at, height), fontsize=7)
    style(axes, title="Batching", x="tokens a second", y="end to end p99, seconds")


def _memory(axes: Axes, results: Numbers) -> None:
    rows = results.get("kv", {}).get("by_page", [])
    axes.plot([r["page_size"] for r in rows], [100 * r["share"] for r in rows], "-o")
    style(axes, title="KV slots that hold tokens, ShareGPT lengths", x="tokens a page", y="%")
    if rows:
        axes.set_xscale("log", base=2)
        axes.axhline(98, ls=":", color="grey")


def _pairs(axes: Axes, results: Numbers, key: str) -> None:
    found = results["workloads"]
    for number, (side, label) in enumerate(SIDES.items()):
        heights = [(entry.get(side) or {}).get(key) or 0 for entry in found.values()]
        if any(heights):
            places = [place + 0.4 * number - 0.2 for place in range(len(found))]
            axes.bar(places, heights, 0.4, label=label)
    axes.set_xticks(range(len(found)), list(found), rotation=20)
