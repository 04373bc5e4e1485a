"""Traces: who asked when, with what, as ids of blocks that tell nothing of the text.

A line is a JSON object in the form of Mooncake's traces (Qin et al., FAST 2025): ``timestamp`` in
milliseconds, ``input_length`` and ``output_length`` in tokens, and ``hash_ids``, one for each block
of the prompt, the last of which may be cut short. An id stands for its block and all before it.
``tenant`` and ``block_size`` may stand beside these; without the latter a block has 512 tokens.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from radixserve.errors import RadixServeError, what_is_wrong
from radixserve.simulation.lines import lines
from radixserve.simulation.paths import Node, Paths

BLOCK = 512
"""Tokens of a block in the traces that the form comes from."""
ASKED = re.compile(rb'"(?:messages|prompt|input)" *:')
"""What a request to a model has, and a trace has not."""
MOST_REQUESTS = 2**20
MOST_BLOCKS = 2**25
"""Distinct ones that are kept, and what the last line has beyond them."""
LARGEST = 2**53
"""Of every count: beyond it not all numbers are themselves as floats."""


class TraceError(RadixServeError):
    """No line of the file is a request."""


class Line(msgspec.Struct, kw_only=True):
    """One request as it stands in the file."""

    timestamp: float
    """Milliseconds."""
    input_length: int
    hash_ids: list[int]
    output_length: int = 0
    tenant: str = ""
    block_size: int = BLOCK


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    time: float
    """Seconds."""
    tokens: int
    """Of the prompt."""
    end: Node
    """Where the prompt's path ends."""
    tenant: str = ""


@dataclass(slots=True)
class Trace:
    """Requests in the order of their times."""

    calls: list[Call] = field(default_factory=list)
    paths: Paths = field(default_factory=Paths)
    block_size: int = 0
    """Tokens."""
    skipped: int = 0
    """Lines that are none."""
    fault: str = ""
    """What is wrong with the first of them, and where it is."""
    cut: int = 0
    """The line from which on none is kept, since there are too many; 0 if there are not."""

    def add(self, line: Line, block: int) -> None:
        """One more request, of which every ``block`` blocks count as one; only whole ones do if
        there are several. Amortized O(blocks)."""
        ids = line.hash_ids if block == 1 else line.hash_ids[block - 1 :: block]
        end = self.paths.add(line.tenant, ids)
        self.calls.append(Call(line.timestamp / 1000, line.input_length, end, line.tenant))

    def leave_out(self, number: int, why: str) -> None:
        """The line of this number is no request."""
        self.skipped += 1
        self.fault = self.fault or f"line {number}: {why}"

    @property
    def distinct(self) -> int:
        """Tokens of all blocks, each counted once."""
        return self.block_size * self.paths.blocks

    @property
    def full(self) -> bool:
        """No request more is kept."""
        return len(self.calls) >= MOST_REQUESTS or self.paths.blocks >= MOST_BLOCKS


def read(
    path: Path, *, block_size: int | None = None, progress: Callable[[int], object] = lambda _: None
) -> Trace:
    """The requests of a file, which may be compressed; what stands before the place where it breaks
    off counts. Memory grows with distinct blocks and with requests, up to ``MOST_BLOCKS`` and
    ``MOST_REQUESTS``.

    Args:
        block_size: Tokens of a block to count in, a multiple of the trace's.
        progress: Called with bytes of the file, as many as were read.

    Raises:
        TraceError: it cannot be read, or no line is a request.
    """
    trace, number = Trace(), 0
    try:
        for number, raw in lines(path, trace.leave_out, progress):
            if not raw.strip():
                continue
            if trace.full:
                trace.cut = number
                break
            _take(trace, raw, number, block_size)
    except OSError as error:
        if not trace.calls:
            raise TraceError(f"{path} cannot be read: {error.strerror or error}.") from error
        trace.leave_out(number + 1, f"cannot be read from here on: {error.strerror or error}")
    except (EOFError, zlib.error) as error:
        trace.leave_out(number + 1, f"the compressed data ends or breaks here: {error}")
    if not trace.calls:
        why = trace.fault or "it is empty"
        raise TraceError(f"{path} is no trace: {why}.")
    trace.calls.sort(key=lambda call: call.time)
    return trace


def _take(trace: Trace, raw: bytes, number: int, block_size: int | None) -> None:
    try:
        line = msgspec.json.decode(raw, type=Line)
        _check(line)
        own = trace.block_size or block_size or line.block_size
        if own % line.block_size:
            raise ValueError(f"blocks of {own} tokens are no multiple of its {line.block_size}")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        trace.leave_out(number, f"{what_is_wrong(error)}{_advice(raw)}")
        return
    trace.block_size = own
    trace.add(line, own // line.block_size)


def _advice(raw: bytes) -> str:
    """What to do with a line that is no part of a trace, if it is a request itself."""
    if b'"hash_ids"' in raw or not ASKED.search(raw):
        return ""
    return "; it looks like a log of requests, which radixserve lint reads"


def _check(line: Line) -> None:
    if line.block_size < 1 or line.input_length < 1:
        raise ValueError("block_size and input_length must be at least 1")
    if max(line.block_size, line.input_length) > LARGEST:
        raise ValueError(f"block_size and input_length must be at most {LARGEST}")
    blocks = -(-line.input_length // line.block_size)
    if blocks - len(line.hash_ids) not in (0, 1) or blocks < len(line.hash_ids):
        raise ValueError(
            f"{line.input_length} tokens are {blocks} blocks of {line.block_size}, "
            f"not {len(line.hash_ids)}"
        )
    if not all(-(2**63) <= each < 2**63 for each in line.hash_ids):
        raise ValueError("hash_ids must be 64-bit integers")
