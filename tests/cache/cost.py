"""What a call costs in units that do not depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def bytecodes(call: Callable[[], object]) -> int:
    """How many bytecode instructions Python runs in ``call``, in all functions together."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


class CountingBytes(bytes):
    """Bytes that know how many of them were compared with a prefix, or copied by a slice."""

    touched: int

    def __new__(cls, data: bytes) -> CountingBytes:
        made = super().__new__(cls, data)
        made.touched = 0
        return made

    def startswith(self, prefix: Any, start: Any = 0, end: Any = None, /) -> bool:
        self.touched += min(len(prefix), (len(self) if end is None else end) - start)
        return super().startswith(prefix, start, end)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.touched += len(found) if isinstance(found, bytes) else 1
        return found
