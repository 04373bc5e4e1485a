"""A stand-in for a CUDA graph: which operation was done to which memory, to be done again.

As in a graph, nothing of Python is left in it: tensors are kept, and what was decided or looked up
while it was captured stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FORBIDDEN = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
}
"""What waits for the device."""


class Capture(TorchDispatchMode):
    """Everything that torch and kernels do inside ``with``; ``replay`` does it again."""

    current: ClassVar[Capture | None] = None

    def __init__(self) -> None:
        super().__init__()
        self._work: list[Callable[[], None]] = []
        self._paused = False

    def __enter__(self) -> Capture:
        Capture.current = self
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        Capture.current = None
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        if func in FORBIDDEN:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **kwargs)
        self._work.append(partial(_again, func, args, kwargs, tree_leaves(out)))
        return out

    def kernel(self, run: Callable[[], None]) -> None:
        """Do ``run``, as one thing that is not looked into."""
        self._paused = True
        run()
        self._paused = False
        self._work.append(run)

    @torch.inference_mode()
    def replay(self) -> None:
        for work in self._work:
            work()


def _again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], before: list[Any]) -> None:
    """The results go where they went before."""
    for old, new in zip(before, tree_leaves(func(*args, **kwargs)), strict=True):
        if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
            old.copy_(new)
