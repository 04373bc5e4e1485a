"""The picture of serving over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from bench.peer.equal import saturation
from bench.peer.served import BY_NAME
from bench.peer.serving_report import measured
from bench.plot import COLOURS, panels, save, style

Numbers = dict[str, Any]


def draw(results: Numbers, path: Path) -> Path:
    """For each workload the p90 first-token time over what is answered, and the most of it."""
    state = "" if results["status"] == "complete" else f" ({results['status'][:60]})"
    machine = results["machine"]["cpu"]
    title = f"Serving over HTTP: {machine}, {results['threads']} threads{state}"
    entries = results["workloads"]
    figure, axes = panels(max(1, 2 * len(entries)), columns=2, title=title)
    for number, (name, entry) in enumerate(entries.items()):
        _curves(axes[2 * number], name, entry)
        _bars(axes[2 * number + 1], entry)
    return save(figure, path)


def _curves(axes: Axes, name: str, entry: Numbers) -> None:
    for colour, (peer, points) in zip(COLOURS, entry["rates"].items(), strict=False):
        found = measured(points)
        best = saturation(found)
        rates = [point["requests_per_s"] for point in found]
        times = [point["ttft_p90"] for point in found]
        axes.plot(rates, times, "-", color=colour, linewidth=1, label=BY_NAME[peer].title)
        for point in found:
            filled = colour if point is best else "white"
            where = (point["requests_per_s"], point["ttft_p90"])
            axes.plot(*where, "o", color=colour, mfc=filled, ms=4)
    style(axes, title=f"{name}: {entry['scale']}", x="requests answered a second", y="p90 TTFT, s")
    axes.set_title(axes.get_title(loc="left"), fontsize=7, loc="left")
    if axes.lines:
        axes.set_yscale("log")
        axes.legend(fontsize=6, frameon=False)


def _bars(axes: Axes, entry: Numbers) -> None:
    places = list(entry["rates"])
    for place, peer in enumerate(places):
        best = saturation(measured(entry["rates"][peer]))
        most = best["requests_per_s"] if best else 0
        closed = entry["closed"].get(peer, {}).get("requests_per_s") or 0
        axes.barh(place - 0.2, most, 0.4, color=COLOURS[0])
        axes.barh(place + 0.2, closed, 0.4, color=COLOURS[4])
        ratio = entry.get("beside", {}).get(peer, {}).get("ratio")
        if ratio:
            text = f" radixserve at its p90 TTFT: {ratio:.2f}x"
            axes.text(max(most, closed), place, text, va="center", fontsize=6)
    axes.set_yticks(range(len(places)), [BY_NAME[peer].title for peer in places])
    axes.invert_yaxis()
    style(axes, title="at most (blue), closed loop (grey)", x="requests a second")
