"""The picture of the comparison: one panel a case, one bar a peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.peer.cases import OURS
from bench.peer.report import speeds
from bench.peer.roster import BY_NAME
from bench.plot import COLOURS, panels, save

Numbers = dict[str, Any]


def draw(results: Numbers, path: Path) -> Path:
    """Bars are speeds over the fastest peer's; beside each is its median as measured."""
    machine, entries = results["machine"], list(results["cases"].values())
    state = "" if results["status"] == "complete" else f" ({results['status'][:60]})"
    title = f"Speed over the fastest: {machine['cpu']}, {results['threads']} threads{state}"
    figure, axes = panels(max(1, len(entries)), columns=2, title=title)
    peers = list(results["peers"])
    for panel, entry in zip(axes, entries, strict=False):
        found = speeds(entry)
        for place, peer in enumerate(peers):
            if peer not in found:
                panel.text(0.01, place, "not measured", va="center", fontsize=7, color="grey")
                continue
            colour = COLOURS[0] if peer == OURS else COLOURS[4]
            panel.barh(place, found[peer], 0.7, color=colour)
            value = f"{entry['median'][peer]:.3g} {entry['unit']}"
            panel.text(found[peer] + 0.01, place, value, va="center", fontsize=7)
        panel.set_yticks(range(len(peers)), [BY_NAME[peer].title for peer in peers])
        panel.set_ylim(len(peers) - 0.4, -0.6)
        panel.set_xlim(0, 1.25)
        panel.set_title(entry["title"], fontsize=9, loc="left")
    return save(figure, path)
