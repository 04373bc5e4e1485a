"""How much is run: the full benchmark in about 20 minutes on two cores, the quick one in 4."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bench import traces, workloads
from bench.workloads import Encode, Workload

NAMES = ("prefix-repetition", "shared-prefix", "multi-turn", "rag", "agents", "chat-trace")


@dataclass(frozen=True, slots=True)
class Size:
    """Counts and factors; see the functions that take them."""

    minutes: float
    repeats: int
    warm: int
    tree_repeats: int
    arrivals: int
    rates: tuple[float, ...]
    """Shares of the saturated rate."""
    sharegpt: float
    """Factor on the lengths."""
    alpaca: float
    longest: int
    static_batch: int
    kv_requests: int
    sweeps: dict[str, tuple[int, ...]]
    """Values of each knob, the ends first, should the time not do for all."""


FULL = Size(
    minutes=20,
    repeats=2,
    warm=3,
    tree_repeats=5,
    arrivals=16,
    rates=(0.5, 0.75, 1.0),
    sharegpt=1.0,
    alpaca=1.0,
    longest=1024,
    static_batch=16,
    kv_requests=400,
    sweeps={
        "page-size": (1, 64, 16, 4, 32, 8, 2),
        "max-num-seqs": (1, 64, 4, 16),
        "max-num-batched-tokens": (64, 512, 128, 256),
    },
)
QUICK = Size(
    minutes=4,
    repeats=1,
    warm=1,
    tree_repeats=2,
    arrivals=6,
    rates=(0.7,),
    sharegpt=1 / 16,
    alpaca=1 / 4,
    longest=64,
    static_batch=8,
    kv_requests=200,
    sweeps={
        "page-size": (1, 64),
        "max-num-seqs": (2, 64),
        "max-num-batched-tokens": (64, 512),
    },
)


def build(name: str, *, quick: bool, scale: float, data: Path | None, encode: Encode) -> Workload:
    """The workload called ``name``; ``scale`` multiplies how many requests it has."""

    def many(full: int, small: int) -> int:
        return max(2, round((small if quick else full) * scale))

    match name:
        case "prefix-repetition":
            shape = (2, 64, 32, 8) if quick else (10, 256, 256, 128)
            prefixes, prefix, suffix, output = shape
            return workloads.prefix_repetition(
                prefixes=prefixes, prompts=many(20, 6), prefix=prefix, suffix=suffix, output=output
            )
        case "shared-prefix":
            return workloads.generated_shared_prefix(
                groups=2 if quick else 4,
                per_group=many(8, 3),
                system=128 if quick else 512,
                question=16 if quick else 64,
                output=8 if quick else 32,
            )
        case "multi-turn":
            return workloads.multi_turn(
                clients=many(6, 2),
                rounds=3 if quick else 4,
                request=40 if quick else 128,
                output=6 if quick else 32,
                stagger=0.5,
            )
        case "rag":
            return workloads.rag(
                encode,
                requests=many(24, 5),
                chunk=48 if quick else 512,
                question=16 if quick else 32,
                output=6 if quick else 32,
            )
        case "agents":
            return traces.agents(
                data,
                sessions=many(6, 2),
                requests=3 if quick else 6,
                block=1,
                longest=512 if quick else 3072,
                pace=0.02,
            )
        case "chat-trace":
            return traces.chat_trace(
                data,
                requests=many(30, 5),
                block=8 if quick else 16,
                longest=256 if quick else 2048,
                rate=2.0,
                every=40,
            )
    raise ValueError(f"no such workload: {name}; there are {', '.join(NAMES)}")


def sweep_workload(*, quick: bool) -> Workload:
    """What the knobs are turned on: a small ``shared-prefix``."""
    if quick:
        return workloads.generated_shared_prefix(
            groups=2, per_group=3, system=64, question=16 if quick else 32, output=6
        )
    return workloads.generated_shared_prefix(
        groups=4, per_group=4, system=256, question=32, output=16
    )


def unshared_workload(*, quick: bool) -> Workload:
    """What the tree's own time is measured on."""
    if quick:
        return workloads.unshared(requests=4, prompt=64, output=4)
    return workloads.unshared(requests=8, prompt=512, output=32)


def long_shared_workload(*, quick: bool) -> Workload:
    """Answers that are long beside their prompts' own part: decoding on one prefix is the work."""
    shape = (128, 6) if quick else (2048, 64)
    made = workloads.generated_shared_prefix(
        groups=1, per_group=8, system=shape[0], question=16, output=shape[1]
    )
    return replace(made, name="long-shared-prefix")
