"""Decoding in CUDA graphs: all kernels of a step are one launch, for batches of few sizes.

A step of decoding rows is padded up to the next bucket. What changes from step to step is copied
into buffers that the graph of that bucket reads; attention is planned outside of it.

    host   wait | fill pinned | begin | copy, record |                        -> logits[:rows]
    stream                    ......... copies ......| replay of the bucket |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from tqdm import tqdm

from radixserve.attention.arrays import PagedBatch
from radixserve.attention.backend import AttentionBackend
from radixserve.errors import ConfigError

log = logging.getLogger(__name__)

Logits = Callable[[PagedBatch], torch.Tensor]
"""Appends the KV of a step and returns the logits, [S, vocabulary], of its sampled rows."""

Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, AttentionBackend], torch.Tensor]
"""(token_ids, positions, sample_rows, backend) -> logits, [R, vocabulary].

The first three are int64 [R] on the device. It must neither wait for the device nor read from it,
and ``begin`` of the backend has been called.
"""

BackendFactory = Callable[[int], AttentionBackend]
"""(rows) -> a backend for batches of exactly so many rows.

Its ``begin`` writes what ``append`` and ``run`` read into buffers whose addresses never change, on
the current stream and without waiting. It may use pinned memory that all buckets share: none is
called before the copies of the one before have left the host.
"""

STEP = 8
TRIES = 5
A_GRAPH = 16 << 20
"""Bytes that a captured graph holds beside the memory that all share; to be measured on a GPU."""
MOST_INDICES = 1 << 24
"""Page ids, 64 MiB of them: more than steps ever have, but for long contexts in tiny pages."""


class GraphAttention(Protocol):
    """Attention that graphs can hold, with a faster way for some steps that they cannot."""

    def most_rows(self, rows: int) -> int:
        """The largest batch, up to ``rows``, that ``buckets`` can be asked for."""

    def buckets(self, rows: int, indices: int) -> BackendFactory:
        """For batches of at most ``rows`` rows with ``indices`` pages in all."""

    def saved(self, batch: PagedBatch) -> float:
        """Seconds that attention takes less where ``batch`` is not run in a graph."""


class Event(Protocol):
    """A point in a stream, as ``torch.cuda.Event``."""

    def record(self) -> None:
        """It is here, behind all that was given to the stream so far."""

    def synchronize(self) -> None:
        """Wait until the stream has got there; at once if it was never recorded."""


class GraphDevice(Protocol):
    """Where graphs are captured and run; all of it on the current stream, in order."""

    def pinned(self, size: int) -> torch.Tensor:
        """int64 [size], zeros on the host that ``copy`` reads after it has returned."""

    def memory(self, size: int) -> torch.Tensor:
        """int64 [size], zeros on the device."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy pinned memory to the device without waiting."""

    def event(self) -> Event:
        """A new event."""

    def warm(self, run: Callable[[], None]) -> None:
        """Call ``run``, so that what is made on first use is there before it is captured."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """A function that does on the device what ``run`` does; all share one pool of memory."""


@dataclass(frozen=True, slots=True)
class Room:
    """The largest steps that graphs are captured for."""

    rows: int
    indices: int
    """Page ids of all rows together. Rows share pages, so that it can be more than the pool has."""
    page_size: int
    row_bytes: int
    """Of a row of logits."""

    @classmethod
    def of(cls, rows: int, max_model_len: int, page_size: int, row_bytes: int) -> Room:
        """For all batches of ``rows`` rows, unless they had more than ``MOST_INDICES`` pages."""
        longest = -(-max_model_len // page_size)
        return cls(rows, min(rows * longest, MOST_INDICES), page_size, row_bytes)

    @property
    def held(self) -> int:
        """Bytes that graphs hold beside what the layers work in."""
        logits = 2 * self.rows * self.row_bytes  # where they are computed, and where they are read
        return logits + 4 * self.indices + A_GRAPH * len(buckets(self.rows))


def buckets(largest: int) -> list[int]:
    """Batch sizes that are captured: 1, 2, 4, 8, then in steps of 8; ``largest`` is the last."""
    return [*(size for size in (1, 2, 4) if size < largest), *range(STEP, largest, STEP), largest]


def pad(batch: PagedBatch, rows: int) -> PagedBatch:
    """A batch of decoding rows with more of them: of one token, which is all of the scratch page.

    Every row samples; who asked for ``batch`` takes the logits of its rows, which come first.
    """
    more = rows - len(batch.last_page_len)
    if more == 0:
        return batch
    zeros = torch.zeros(more, dtype=torch.int64)
    ends = batch.kv_indptr[-1] + torch.arange(1, more + 1, dtype=torch.int32)
    return replace(
        batch,
        qo_indptr=torch.arange(rows + 1, dtype=torch.int32),
        kv_indptr=torch.cat([batch.kv_indptr, ends]),
        kv_indices=torch.cat([batch.kv_indices, zeros.int()]),
        last_page_len=torch.cat([batch.last_page_len, torch.ones(more, dtype=torch.int32)]),
        token_ids=torch.cat([batch.token_ids, zeros]),
        positions=torch.cat([batch.positions, zeros]),
        append_pages=torch.cat([batch.append_pages, zeros]),
        append_offsets=torch.cat([batch.append_offsets, zeros]),
        sample_rows=torch.arange(rows),
    )


def scratch(rows: int, page_size: int) -> PagedBatch:
    """A batch of nothing but padding."""
    none = torch.empty(0, dtype=torch.int64)
    start = torch.zeros(1, dtype=torch.int32)
    empty = PagedBatch(
        page_size=page_size,
        qo_indptr=start,
        kv_indptr=start,
        kv_indices=none.int(),
        last_page_len=none.int(),
        token_ids=none,
        positions=none,
        append_pages=none,
        append_offsets=none,
        sample_rows=none,
    )
    return pad(empty, rows)


@dataclass(frozen=True, slots=True)
class _Graph:
    rows: int
    backend: AttentionBackend
    replay: Callable[[], None]


class GraphedDecode:
    """Captures ``forward`` for every bucket of ``room``, the largest first.

    Args:
        forward: the model, from token ids to logits.
        backend_factory: attention for each bucket, over the KV pages that are served from.
        room: what is larger is not taken.

    Raises:
        ConfigError: it cannot be captured; the message says why.
    """

    def __init__(
        self,
        forward: Forward,
        backend_factory: BackendFactory,
        room: Room,
        device: GraphDevice,
    ):
        self._forward, self._device, self._room = forward, device, room
        largest = room.rows
        self._host = device.pinned(2 * largest)
        self._inputs = device.memory(2 * largest)
        self._rows = device.memory(largest)
        self._rows.copy_(torch.arange(largest))
        self._staged = device.event()
        self._logits: torch.Tensor | None = None
        self._graphs: list[_Graph] = []
        # A pool that has served the largest batch has room for every smaller one.
        sizes = buckets(largest)[::-1]
        for rows in tqdm(sizes, desc="Capturing CUDA graphs", unit=" graphs"):
            self._graphs.insert(0, self._capture(rows, backend_factory(rows)))

    def takes(self, batch: PagedBatch) -> bool:
        """Whether every row of ``batch`` computes one token and samples, and there is room for it;
        none scores.

        O(1).
        """
        rows, room = len(batch.last_page_len), self._room
        single = rows == len(batch.token_ids) == len(batch.sample_rows)
        if not single or batch.scored or rows > room.rows:
            return False
        # At worst it is padded up to the largest bucket, with a page a row.
        return len(batch.kv_indices) + room.rows - rows <= room.indices

    def __call__(self, batch: PagedBatch) -> torch.Tensor:
        """Logits, [R, vocabulary], of a batch that it ``takes``; the KV of all rows is appended.

        They are in memory that the next call overwrites: whoever reads them does so on the same
        stream before, or makes a copy.
        """
        rows = len(batch.last_page_len)
        graph = next(graph for graph in self._graphs if graph.rows >= rows)
        self._stage(pad(batch, graph.rows), graph.backend)
        graph.replay()
        assert self._logits is not None
        return self._logits[:rows]

    def _stage(self, batch: PagedBatch, backend: AttentionBackend) -> None:
        rows = len(batch.token_ids)
        self._staged.synchronize()  # the step before may still be copying from pinned memory
        self._host[:rows] = batch.token_ids
        self._host[rows : 2 * rows] = batch.positions
        backend.begin(batch)
        self._device.copy(self._inputs[: 2 * rows], self._host[: 2 * rows])
        if batch.unknown is not None:
            batch.unknown.fill(self._inputs[:rows])
        self._staged.record()

    def _capture(self, rows: int, backend: AttentionBackend) -> _Graph:
        @torch.inference_mode()
        def run() -> None:
            ids, positions = self._inputs[:rows], self._inputs[rows : 2 * rows]
            logits = self._forward(ids, positions, self._rows[:rows], backend)
            if self._logits is None:  # made while the largest is warmed, outside of any graph
                self._logits = torch.empty_like(logits)
            self._logits[:rows].copy_(logits)

        try:
            self._stage(scratch(rows, self._room.page_size), backend)
            self._device.warm(run)
            return _Graph(rows, backend, self._device.capture(run))
        except RuntimeError as error:
            raise ConfigError(
                f"decoding {rows} rows cannot be captured in a CUDA graph "
                f"({str(error).splitlines()[0]}): start with --enforce-eager."
            ) from error


def with_graphs(
    eager: Logits, forward: Forward, attention: GraphAttention, room: Room, device: GraphDevice
) -> Logits:
    """``eager``, except that steps which only decode run in graphs where that is faster.

    Graphs hold the plain form of attention alone. A step for which ``attention`` has a better one
    runs without a graph if that saves more time than launching kernel by kernel costs, which is
    measured here.
    """
    room = replace(room, rows=attention.most_rows(room.rows))
    backends = attention.buckets(room.rows, room.indices)
    graphed = GraphedDecode(forward, backends, room, device)
    padding = scratch(room.rows, room.page_size)
    launching = max(0.0, _seconds(eager, padding, device) - _seconds(graphed, padding, device))
    log.info(
        "decoding up to %d rows runs in CUDA graphs: a step takes %.2f ms less",
        room.rows,
        1000 * launching,
    )

    def logits(batch: PagedBatch) -> torch.Tensor:
        if graphed.takes(batch) and attention.saved(batch) <= launching:
            return graphed(batch)
        return eager(batch)

    return logits


def _seconds(logits: Logits, batch: PagedBatch, device: GraphDevice) -> float:
    """Best of a few steps, from the call to its end on the device."""
    done, spent = device.event(), []
    for _ in range(TRIES):
        begun = time.perf_counter()
        logits(batch)
        done.record()
        done.synchronize()
        spent.append(time.perf_counter() - begun)
    return min(spent)


class CudaGraphs:
    """``GraphDevice`` of a CUDA device."""

    def __init__(self, device: torch.device):
        self._device = device
        # The default stream cannot be captured.
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def pinned(self, size: int) -> torch.Tensor:
        """See ``GraphDevice``."""
        return torch.zeros(size, dtype=torch.int64, pin_memory=True)

    def memory(self, size: int) -> torch.Tensor:
        """See ``GraphDevice``."""
        return torch.zeros(size, dtype=torch.int64, device=self._device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See ``GraphDevice``."""
        target.copy_(source, non_blocking=True)

    def event(self) -> Event:
        """See ``GraphDevice``."""
        event: Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        return event

    def warm(self, run: Callable[[], None]) -> None:
        """See ``GraphDevice``."""
        current = torch.cuda.current_stream(self._device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            run()
        current.wait_stream(self._side)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """See ``GraphDevice``."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"
        ):  # what other threads do is no concern of the capture
            run()
        return graph.replay
