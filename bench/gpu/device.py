"""What is asked of a device beside running the model: its clock, its rates, its kernels' times."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Protocol

import torch

from bench.gpu.idle import Span

Run = Callable[[], object]

NO_KERNELS = ("Memcpy", "Memset", "Context Sync", "Stream Sync", "Stream Wait", "Event Sync")
"""How the profiler names what is on the device's time line beside kernels."""


class Device(Protocol):
    """Where the model runs. Small enough to be sent to another process."""

    kind: str
    """As torch and ``EngineConfig.device`` call it."""
    copied: int
    """Bytes of the copy that says how fast memory is."""
    side: int
    """Rows and columns of the matrices that say how fast it multiplies."""
    repeats: int
    """Of what is timed kernel by kernel."""

    def seconds(self, run: Run) -> float:
        """How long the device takes for what ``run`` gives it."""

    def kernels(self, run: Run) -> list[Span]:
        """The times of all kernels while ``run`` runs."""


class Cuda:
    """The GPU that torch computes on."""

    kind = "cuda"
    copied = 1 << 30
    side = 8192
    repeats = 50

    def seconds(self, run: Run) -> float:
        """See ``Device``."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def kernels(self, run: Run) -> list[Span]:
        """See ``Device``. What is watched launches a little slower than what is not."""
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            run()
            torch.cuda.synchronize()
        return [
            (event.time_range.start / 1e6, event.time_range.end / 1e6)
            for event in profiled.events() or ()
            if event.device_type == DeviceType.CUDA
            and not event.is_user_annotation
            and not event.name.startswith(NO_KERNELS)
        ]


class Cpu:
    """For trying all of this out where there is no GPU: the host is the device, and never idle."""

    kind = "cpu"
    copied = 1 << 24
    side = 256
    repeats = 3

    def seconds(self, run: Run) -> float:
        """See ``Device``."""
        begin = perf_counter()
        run()
        return perf_counter() - begin

    def kernels(self, run: Run) -> list[Span]:
        """See ``Device``."""
        begin = perf_counter()
        run()
        return [(begin, perf_counter())]


DEVICES: dict[str, Callable[[], Device]] = {"cuda": Cuda, "cpu": Cpu}


def usual(device: Device, run: Run, *, times: int = 1) -> float:
    """The median time of ``run``, in seconds, once it has been compiled.

    It runs ``times`` in a row for each time that is taken: the more, the less of it is launching.
    """

    def several() -> None:
        for _ in range(times):
            run()

    for _ in range(3):
        run()
    return median(device.seconds(several) for _ in range(device.repeats)) / times
