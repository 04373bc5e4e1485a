"""Sizes for two slow cores, a device whose clock a test sets, and subjects in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.gpu.device import Cpu, Run
from bench.gpu.errors import CaseError, reason
from bench.gpu.idle import Span
from bench.gpu.sizes import Sizes

Numbers = dict[str, Any]

SMALL = Sizes(
    cached=64, long=96, new=8, own=8, apart=24, rows=4, steps=2, repeats=2,
    groups=2, system=32, question=8, answer=4,
)  # fmt: skip


class Watched(Cpu):
    """A CPU that takes half a second for everything, and waits for a quarter of its time."""

    copied = 1 << 10
    side = 16
    repeats = 1

    def seconds(self, run: Run) -> float:
        run()
        return 0.5

    def kernels(self, run: Run) -> list[Span]:
        run()
        return [(0.0, 1.0), (2.0, 4.0)]


class Here:
    """``bench.gpu.process.Process`` without a process."""

    def __init__(self, make: Callable[[], Any], seconds: float):
        try:
            self._subject = make()
        except Exception as error:
            raise CaseError(reason(error)) from error
        self.about = self._subject.about()

    def ask(self, method: str, arguments: tuple[int, ...], seconds: float) -> Numbers:
        try:
            return dict(getattr(self._subject, method)(*arguments))
        except Exception as error:
            raise CaseError(reason(error)) from error

    def close(self) -> None:
        if hasattr(self._subject, "close"):
            self._subject.close()
