"""A subject that fails in the ways that one on a GPU does; sent to another process by the tests."""

from __future__ import annotations

import os
import threading
from typing import Any


class Fragile:
    def __init__(self, *, loads: bool = True):
        if not loads:
            raise RuntimeError("CUDA error:\nno kernel image")

    def about(self) -> dict[str, Any]:
        return {"backend": "fragile", "process": os.getpid()}

    def double(self, number: int) -> dict[str, Any]:
        return {"number": 2 * number}

    def fault(self) -> dict[str, Any]:
        raise MemoryError("CUDA out of memory")

    def crash(self) -> dict[str, Any]:
        os._exit(7)

    def hang(self) -> dict[str, Any]:
        threading.Event().wait()
        return {}
