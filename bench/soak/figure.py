"""The picture of a soak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.plot import limit, panels, save, style


def draw(results: dict[str, Any], path: Path) -> Path:
    """Memory and the time that /health took, over the run."""
    figure, (memory, health) = panels(2, columns=2, title="radixserve under everything at once")
    style(memory, title="Memory of the server and its engine", x="minutes", y="MiB")
    memory.plot(*_columns(results["memory"], 2**20))
    memory.set_ylim(bottom=0)
    style(health, title="Time that /health takes", x="minutes", y="ms")
    minutes, times = _columns(results["health"], 1e-3)
    health.plot(minutes, times, ".", markersize=2)
    if minutes:
        limit(health, [minutes[0], minutes[-1]], [100, 100])
    for at, _ in results["kills"]:
        for panel in (memory, health):
            panel.axvline(at / 60, color="#bbbbbb", linewidth=0.6)
    return save(figure, path)


def _columns(samples: list[tuple[float, float]], unit: float) -> tuple[list[float], list[float]]:
    return [at / 60 for at, _ in samples], [value / unit for _, value in samples]
