"""Which decoding rows of a step share which pages, level by level, and the arrays for it.

Juravsky et al., "Hydragen" (2024); Ye et al., "Cascade Inference" (2024): attention over the parts
of a context is exact once they are merged by log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixserve.attention.arrays import PagedBatch
from radixserve.attention.cascade import CascadeCost

Int32s = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Run:
    """Pages ``first`` to ``end`` of the context of each of ``rows`` are the same ones."""

    rows: Ints
    """Ascending."""
    first: int
    end: int


@dataclass(slots=True)
class Level:
    """What to merge into the first ``span`` tokens of the step."""

    span: int
    first: int
    """Those of token ``t`` are the stacked results at ``first + t``, if ``places`` is None."""
    places: Int32s | None = None
    """[span]: where in the stacked results those of each token are."""
    mask: npt.NDArray[np.uint8] | None = None
    """[span]: 0 for tokens that have none at this level."""


@dataclass(slots=True)
class Cascade:
    """N shared runs of S whole pages, seen by Q stacked queries, and what each row has left.

    Runs are stacked level by level, so a query appears once for each level that its row is in.
    """

    qo_indptr: Int32s
    """[N + 1]: the stacked queries of each run."""
    kv_indptr: Int32s
    """[N + 1]."""
    kv_indices: Int32s
    """[S], page ids."""
    queries: Int32s | None
    """[Q]: which token of the step each is; None where they are its first Q, in order."""
    stacked: int
    """Q."""
    levels: list[Level]
    own_indptr: Int32s
    """[R + 1]."""
    own_indices: Int32s
    """Pages of each row behind those that it shares: always the last one, which is written to."""


def shared_runs(batch: PagedBatch, cost: CascadeCost) -> list[list[Run]]:
    """Runs of pages that rows with one new token share and that are worth it, outermost first.

    A run of level ``n + 1`` begins where one of level ``n`` ends, which has all its rows. Rows that
    share pages further on, but not what is before, share nothing. O(rows · shared pages).
    """
    indices = batch.kv_indices.numpy()
    starts = batch.kv_indptr.numpy()[:-1].astype(np.int64)
    # The last page of a row takes its new token, so it is the row's own.
    old = batch.kv_indptr.numpy()[1:] - starts - 1
    decoding = np.flatnonzero(np.diff(batch.qo_indptr.numpy()) == 1)
    levels: list[list[Run]] = []
    todo = [(decoding, 0, 0, 0)] if len(decoding) > 1 else []
    while todo:
        rows, taken, at, depth = todo.pop()
        alike = _alike(indices, starts[rows], at, int(old[rows].min()))
        if cost.saved(len(rows), (alike - taken) * batch.page_size) > 0:
            if depth == len(levels):
                levels.append([])
            levels[depth].append(Run(rows, taken, alike))
            taken, depth = alike, depth + 1
        further = rows[old[rows] > alike]
        pages = indices[starts[further] + alike]
        order = np.argsort(pages, kind="stable")
        cuts = np.flatnonzero(np.diff(pages[order], prepend=-1, append=-1))
        several = np.flatnonzero(np.diff(cuts) > 1)
        parts = [further[order[cuts[part] : cuts[part + 1]]] for part in several]
        todo.extend((part, taken, alike, depth) for part in parts)
    while levels and not cost.worth(_sizes(levels[-1], batch.page_size)):
        levels.pop()
    return levels


def gain(levels: list[list[Run]], page_size: int, cost: CascadeCost) -> float:
    """Seconds a layer that are saved by reading ``levels`` once."""
    return sum(cost.gain(_sizes(level, page_size)) for level in levels)


def cascade(batch: PagedBatch, levels: list[list[Run]]) -> Cascade:
    """The arrays of ``levels``, of which there is one at least."""
    qo_indptr, starts = batch.qo_indptr.numpy(), batch.kv_indptr.numpy()[:-1]
    indices = batch.kv_indices.numpy()
    runs = [run for level in levels for run in level]
    skipped = np.zeros(len(starts), np.int32)
    for run in runs:
        skipped[run.rows] = run.end
    own = batch.kv_indptr.numpy()[1:] - starts - skipped
    begins, ends = (starts + skipped).tolist(), batch.kv_indptr.numpy()[1:].tolist()
    tokens = [[qo_indptr[run.rows] for run in level] for level in levels]
    queries = np.concatenate([each for level in tokens for each in level])
    span = int(queries.max()) + 1
    in_order = len(queries) == span and bool((queries == np.arange(span)).all())
    return Cascade(
        qo_indptr=_indptr([len(run.rows) for run in runs]),
        kv_indptr=_indptr([run.end - run.first for run in runs]),
        kv_indices=np.concatenate(
            [indices[starts[run.rows[0]] :][run.first : run.end] for run in runs]
        ),
        queries=None if in_order else queries,
        stacked=len(queries),
        levels=_levels([np.concatenate(level) for level in tokens], span),
        own_indptr=_indptr(own),
        own_indices=np.concatenate([indices[a:b] for a, b in zip(begins, ends, strict=True)]),
    )


def _levels(tokens: list[Int32s], span: int) -> list[Level]:
    """How the results of ``tokens``, stacked level by level, are merged."""
    levels, first = [], 0
    for each in tokens:
        level = Level(span, first)
        if len(each) < span or (each != np.arange(span)).any():
            level.places, mask = np.full(span, first, np.int32), np.zeros(span, np.uint8)
            level.places[each] = first + np.arange(len(each))
            mask[each] = 1
            level.mask = mask if len(each) < span else None
        levels.append(level)
        first += len(each)
    return levels


def _alike(indices: Int32s, starts: Ints, at: int, limit: int) -> int:
    """The first page from ``at`` on, below ``limit``, where the rows differ; else ``limit``.

    Looks at longer and longer stretches, so that it reads little more than what is shared.
    """
    stretch = 16
    while at < limit:
        end = min(limit, at + stretch)
        window = indices[starts[:, None] + np.arange(at, end)]
        same = (window == window[0]).all(0)
        if not same.all():
            return at + int(same.argmin())
        at, stretch = end, stretch * 4
    return limit


def _sizes(level: list[Run], page_size: int) -> list[tuple[int, int]]:
    return [(len(run.rows), (run.end - run.first) * page_size) for run in level]


def _indptr(lengths: npt.ArrayLike) -> Int32s:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
