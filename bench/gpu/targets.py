"""What is to be reached, and whether it was: arithmetic over what the cases found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.gpu.cases import Found
from bench.gpu.geometry import Geometry
from bench.gpu.sizes import Sizes

Numbers = dict[str, Any]
Cases = Mapping[str, Numbers]
"""Numbers by the name of their case."""


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the table."""

    name: str
    needs: tuple[str, ...]
    """Cases, without which nothing can be said."""
    measured: Callable[[Cases], Numbers]
    """What it is about; ``ratio`` among it."""
    bound: float
    unit: str = "x"
    """``x``: so many times; ``%``: a share of 1."""
    most: bool = False
    """Whether the ratio has to be at most the bound, not at least."""


def row(target: Target, found: Found) -> Numbers:
    """The target with what was measured; ``failed`` says why there is nothing, else it is None."""
    told: Numbers = {
        "name": target.name,
        "ratio": None,
        "target": target.bound,
        "rule": "at most" if target.most else "at least",
        "unit": target.unit,
        "met": False,
        "measured": {},
        "failed": None,
    }
    missing = [name for name in target.needs if name not in found.numbers]
    if missing:
        reasons = [found.failures.get(name, "it was not run") for name in missing]
        lines = [f"{name}: {why}" for name, why in zip(missing, reasons, strict=True)]
        return told | {"failed": "; ".join(lines)}
    measured = target.measured(found.numbers)
    ratio = measured.pop("ratio")
    met = ratio <= target.bound if target.most else ratio >= target.bound
    return told | {"ratio": ratio, "met": met, "measured": measured}


def targets(geometry: Geometry, sizes: Sizes) -> list[Target]:
    """All of them; the bounds are those for one H200."""
    rows, shared = f"{sizes.rows} rows", f"sharing {sizes.cached:,}"
    decode = f"decode, {rows} {shared} + {sizes.own} each"
    long = f"decode, {rows} sharing {sizes.long:,} + {sizes.own} each"
    apart = f"decode, {rows}, nothing shared, {sizes.apart:,} each"
    return [
        _first(f"first token, {sizes.cached:,} cached + {sizes.new} new", "first", 25),
        _first(f"first token, {sizes.long:,} cached + {sizes.new} new", "first-long", 100),
        _together(f"{decode}: plain over cascade", "decode-shared", "plain-shared", 3),
        _floor(f"{decode}: of the roofline", geometry, "decode-shared", 0.7),
        _together(f"{long}: plain over cascade", "decode-long", "plain-long", 8),
        _floor(f"{apart}: of the roofline", geometry, "decode-apart", 0.8),
        _idle(f"{rows}, nothing shared: GPU waits between steps", "idle-apart"),
        _idle(f"{rows} {shared}: GPU waits between steps", "idle-shared"),
        _prefill(f"prefill, {sizes.cached:,} cold: of the matrix rate", geometry),
        _peer(
            f"{rows}, {sizes.groups} prefixes of {sizes.system:,}: throughput over transformers'"
        ),
    ]


def _first(name: str, case: str, bound: float) -> Target:
    def measured(cases: Cases) -> Numbers:
        cold, warm = cases[case]["cold_s"], cases[case]["warm_s"]
        return {"ratio": cold / warm, "cold_s": cold, "warm_s": warm}

    return Target(f"{name}: cold over warm", (case,), measured, bound)


def _together(name: str, case: str, plain: str, bound: float) -> Target:
    def measured(cases: Cases) -> Numbers:
        apart, together = cases[plain]["step_s"], cases[case]["step_s"]
        return {"ratio": apart / together, "plain_step_s": apart, "cascade_step_s": together}

    return Target(name, (case, plain), measured, bound)


def _floor(name: str, geometry: Geometry, case: str, bound: float) -> Target:
    def measured(cases: Cases) -> Numbers:
        step, rate = cases[case]["step_s"], cases["rates"]["copy_bytes_per_s"]
        read = geometry.decode_bytes(cases[case]["kv_once"])
        return {
            "ratio": read / rate / step, "step_s": step, "floor_s": read / rate,
            "bytes": read, "copy_bytes_per_s": rate,
        }  # fmt: skip

    return Target(name, ("rates", case), measured, bound, unit="%")


def _idle(name: str, case: str) -> Target:
    def measured(cases: Cases) -> Numbers:
        seen = cases[case]
        return {"ratio": seen["waiting"]} | {k: v for k, v in seen.items() if k != "waiting"}

    return Target(name, (case,), measured, 0.02, unit="%", most=True)


def _prefill(name: str, geometry: Geometry) -> Target:
    def measured(cases: Cases) -> Numbers:
        seconds, rate = cases["prefill"]["seconds"], cases["rates"]["operations_per_s"]
        operations = geometry.prefill_operations(cases["prefill"]["tokens"])
        return {
            "ratio": operations / rate / seconds, "seconds": seconds,
            "floor_s": operations / rate, "operations": operations, "operations_per_s": rate,
        }  # fmt: skip

    return Target(name, ("rates", "prefill"), measured, 0.6, unit="%")


def _peer(name: str) -> Target:
    def measured(cases: Cases) -> Numbers:
        ours, theirs = cases["load"]["tokens_per_s"], cases["peer-load"]["tokens_per_s"]
        return {
            "ratio": ours / theirs, "tokens_per_s": ours, "transformers_tokens_per_s": theirs,
            "cached_tokens": cases["load"]["cached_tokens"],
        }  # fmt: skip

    return Target(name, ("load", "peer-load"), measured, 3)


def moved(found: Found) -> list[Numbers]:
    """Kernels that move memory, beside a plain copy of the same run; those that failed say why."""
    rate = found.numbers.get("rates", {}).get("copy_bytes_per_s")
    rows: list[Numbers] = []
    for case in ("copies", "appends"):
        rows += [
            each | {"of_copy": each["gb_per_s"] * 1e9 / rate if rate else None}
            for each in found.numbers.get(case, {}).get("rows", ())
        ]
        if case in found.failures:
            rows.append({"name": case, "failed": found.failures[case]})
    return rows
