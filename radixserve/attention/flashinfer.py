"""Paged attention by FlashInfer's kernels on a GPU; shared prefixes are read once for all rows."""

from __future__ import annotations

import copy
import importlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from radixserve.attention.arrays import PagedBatch
from radixserve.attention.cascade import ROWS, TOKENS, CascadeCost, measured, sharers
from radixserve.attention.fixed import FixedArrays, FixedStep
from radixserve.attention.groups import Run, cascade, gain, shared_runs
from radixserve.attention.staging import CudaDevice, Device, Merge, Shared, Staging, Step, staged
from radixserve.errors import ConfigError
from radixserve.kernels.kv_append import append_fp8

log = logging.getLogger(__name__)

Tensors = tuple[torch.Tensor, torch.Tensor]

QUERY_DTYPES = (torch.float16, torch.bfloat16)
CODED = torch.float8_e4m3fn
HEAD_DIMS = (64, 128, 256)
LEAST_WORKSPACE = 384 << 20
"""Bytes: what is documented is too little for large batches, and it does not grow."""
PIECES = 320
"""Into so many, two a multiprocessor, FlashInfer cuts contexts at most, and keeps fp32 results."""
TILE = 128
"""Query heads of a KV head that a piece is computed for, at most."""
MERGE_THREADS = 1024
"""FlashInfer merges all heads of a token in one block of threads."""
ALWAYS = CascadeCost(level=0.0, row=0.0, read=1.0, compute=0.0)


class FlashInferAttention:
    """An ``AttentionBackend`` over ``kv``, [layers, pages, 2, page_size, kv_heads, head_dim].

    ``kv`` is of ``query_dtype``, or float8_e4m3fn: then a key is kept divided by the first, a
    value by the second of its layer's ``scales`` (one pair for all layers, or one for each). Steps
    of at most ``most_tokens`` tokens; slots that were never written may hold anything.

    With ``together`` and a ``cost``, decoding rows that share pages read them once for all where
    that pays; parts of a context are then rounded to ``query_dtype`` before they are merged. There
    is no sliding window here. CUDA graphs can hold what ``buckets`` makes.

    Raises:
        ConfigError: FlashInfer is not installed, or has no kernels for these dtypes and heads.
    """

    def __init__(
        self,
        kv: torch.Tensor,
        heads: int,
        *,
        query_dtype: torch.dtype,
        most_tokens: int,
        scales: Sequence[tuple[float, float]] = ((1.0, 1.0),),
        cost: CascadeCost | None = None,
        together: bool = True,
        library: Any = None,
        device: Device | None = None,
    ):
        layers, _, _, _, self._kv_heads, self._head_dim = kv.shape
        _check(kv, heads, query_dtype, scales)
        self.kv = kv
        self.heads = heads
        self.query_dtype = query_dtype
        self.cost = cost
        self._library = library or _flashinfer()
        self._device = device or CudaDevice(kv.device)
        self._coded = kv.dtype == CODED
        self._scales = list(scales) * (layers if len(scales) == 1 else 1)
        # A block of threads that merges has head_dim / 8 of them for each head.
        self._together = together and heads * self._head_dim // 8 <= MERGE_THREADS
        self._most_tokens = most_tokens
        size = max(LEAST_WORKSPACE, most_tokens * heads * self._head_dim * 16)
        size = max(size, PIECES * heads // self._kv_heads * TILE * (self._head_dim + 1) * 4)
        self._workspace = self._device.workspace(size)
        counting = self._device.pinned(most_tokens + 1)
        torch.arange(most_tokens + 1, out=counting)
        self._counting = self._device.send(counting)
        self._staging = Staging(self._device)
        self._workspace_size = size
        self._tensor_cores = heads // self._kv_heads >= 4 or self._coded
        self._fixed: FixedStep | None = None
        self._looked: tuple[PagedBatch, list[list[Run]]] | None = None
        self._forms: dict[tuple[float, float | None], _Form] = {}
        self._step: Step | None = None

    def begin(self, batch: PagedBatch) -> None:
        """Bring the arrays to the device and plan. Waits for the copies of the step before.

        Raises:
            ValueError: the step has more than ``most_tokens`` tokens.
        """
        if len(batch.token_ids) > self._most_tokens:
            raise ValueError(f"a step of {len(batch.token_ids)} tokens: {self._most_tokens} fit")
        levels = self._levels(batch)
        found = cascade(batch, levels) if levels else None
        self._staging.wait()
        if self._fixed is None:
            self._step = staged(batch, found, self._staging)
        else:
            self._step = self._fixed.staged(batch, self._staging)
        for form in self._forms.values():
            form.plan(self._step)
        self._staging.close()

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """See ``AttentionBackend.append``."""
        step = self._planned()
        if self._coded:
            pages, offsets = step.append_pages, step.append_offsets
            first, second = self._scales[layer]
            append_fp8(
                self.kv[layer], key, value, pages, offsets, key_scale=first, value_scale=second
            )
            return
        # Each new token is, to FlashInfer, the last one of a sequence of a single page.
        self._library.append_paged_kv_cache(
            append_key=key,
            append_value=value,
            batch_indices=self._counting[: step.tokens],
            positions=step.append_offsets,
            paged_kv_cache=self.kv[layer],
            kv_indices=step.append_pages,
            kv_indptr=self._counting[: step.tokens + 1],
            kv_last_page_len=step.append_lengths,
            kv_layout="NHD",
        )

    def run(
        self, layer: int, query: torch.Tensor, *, scale: float, soft_cap: float | None = None
    ) -> torch.Tensor:
        """See ``AttentionBackend.run``. Softmax is in fp32, its products in the query's dtype.

        FlashInfer plans for one ``scale`` and ``soft_cap``: those seen before are planned by
        ``begin``, new ones here.
        """
        step, form = self._planned(), self._form(scale, soft_cap)
        query, shared = query.contiguous(), step.shared
        own = form.decode if step.most == 1 else form.paged
        if shared is None:
            return self._attend(own, layer, query)[0]
        output, lse = self._attend(own, layer, query, lse=True)
        stacked = (
            query[: shared.stacked]
            if shared.queries is None
            else query.index_select(0, shared.queries)
        )
        states = self._attend(form.shared, layer, stacked, lse=True)
        for merge in shared.merges:
            other, other_lse = (_picked(each, merge) for each in states)
            self._library.merge_state_in_place(
                v=output[: merge.span],
                s=lse[: merge.span],
                v_other=other,
                s_other=other_lse,
                mask=merge.mask,
            )
        return output

    def _attend(
        self, wrapper: Any, layer: int, query: torch.Tensor, *, lse: bool = False
    ) -> Tensors:
        """Attention, and with ``lse`` the log-sum-exp to base 2, fp32 [queries, heads]."""
        options: dict[str, Any] = {"out": torch.empty_like(query), "return_lse": lse}
        if self._coded:
            options["k_scale"], options["v_scale"] = self._scales[layer]
        found = wrapper.run(query, self.kv[layer], **options)
        return found if lse else (found, found)

    def _form(self, scale: float, soft_cap: float | None) -> _Form:
        form = self._forms.get((scale, soft_cap))
        if form is None:
            form = self._forms[scale, soft_cap] = _Form(self, scale, soft_cap)
            form.plan(self._planned())
            self._staging.close()
        return form

    def _planned(self) -> Step:
        if self._step is None:
            raise RuntimeError("a step begins with begin()")
        return self._step

    def _levels(self, batch: PagedBatch) -> list[list[Run]]:
        """What rows share and had better read together."""
        if not self._together or self.cost is None:
            return []
        # Whoever asks what is saved begins that very step next, unless it is better in a graph.
        if self._looked is None or self._looked[0] is not batch:
            self._looked = batch, shared_runs(batch, self.cost)
        return self._looked[1]

    def saved(self, batch: PagedBatch) -> float:
        """Seconds, by ``cost``, that a step of ``batch`` gains by reading once what rows share."""
        levels = self._levels(batch)
        if not levels or self.cost is None:
            return 0.0
        return len(self.kv) * gain(levels, batch.page_size, self.cost)

    def most_rows(self, rows: int) -> int:
        """The largest batch, up to ``rows``, that ``buckets`` can be asked for.

        On tensor cores FlashInfer plans a graph for as many tiles of queries as there could be, and
        the fp32 results of each have their place in the workspace.
        """
        if not self._tensor_cores:
            return rows
        group = self.heads // self._kv_heads
        tile = 16 if group <= 16 else TILE
        row = self.heads * (group + tile) * (self._head_dim + 1) * 4
        return min(rows, self._workspace_size // row)

    def buckets(self, rows: int, indices: int) -> Callable[[int], FlashInferAttention]:
        """A function from R, at most ``rows``, to this attention for steps of R decoding rows.

        What that reads is at addresses which never change, so that a CUDA graph can hold its
        ``append`` and ``run``; ``begin`` stays outside. Rows never read together, and have at most
        ``indices`` pages in all. All of them share this one's KV, workspace and pinned memory:
        whoever begins a step of one has let the device finish with the copies of the step before.
        """
        memory = FixedArrays(self._device, rows, indices)

        def made(count: int) -> FlashInferAttention:
            bucket = copy.copy(self)
            bucket._fixed, bucket._together = memory.of(count), False
            bucket._forms, bucket._step = {}, None
            return bucket

        return made

    def calibrate(self) -> None:
        """Set ``cost`` to what is measured on this device, now or when it was first used.

        Runs steps over pages that may hold anything and writes none of them. The first time, the
        kernels are compiled too.
        """
        if not self._together:
            return
        page_size, pages = self.kv.shape[3], self.kv.shape[1]
        sizes = [
            (rows, tokens)
            for rows in ROWS
            for tokens in TOKENS
            if rows <= self._most_tokens and -(-tokens // page_size) + rows <= pages
        ]
        if len(sizes) < 4:
            log.info("shared prefixes are read apart: the KV pool is too small to measure them")
            return
        name = (
            f"{self._device.name} flashinfer {self._library.__version__} {self.query_dtype} "
            f"{self.kv.dtype} layers {len(self.kv)} heads {self.heads} {self._kv_heads} "
            f"{self._head_dim} page {page_size}"
        )
        self.cost = measured(name, self._seconds, sizes)
        self._forms.clear()

    def _seconds(self, rows: int, tokens: int, together: bool) -> float:
        """Best of a few steps, over all layers, planning included."""
        batch = sharers(rows, -(-tokens // self.kv.shape[3]), self.kv.shape[3])
        query = torch.zeros(
            rows, self.heads, self._head_dim, dtype=self.query_dtype, device=self.kv.device
        )
        done, layers = self._device.event(), len(self.kv)
        kept, self.cost = self.cost, ALWAYS if together else None
        spent = []
        for _ in range(6):
            begun = time.perf_counter()
            self.begin(batch)
            for layer in range(layers):
                self.run(layer, query, scale=self._head_dim**-0.5)
            done.record()
            done.synchronize()
            spent.append(time.perf_counter() - begun)
        self.cost = kept
        return min(spent) / layers


class _Form:
    """Wrappers of FlashInfer that are planned for one scale and soft cap."""

    def __init__(self, owner: FlashInferAttention, scale: float, soft_cap: float | None):
        library, workspace = owner._library, owner._workspace
        heads, (kv_heads, head_dim) = owner.heads, owner.kv.shape[-2:]
        paged = library.BatchPrefillWithPagedKVCacheWrapper
        decode = library.BatchDecodeWithPagedKVCacheWrapper
        cores = owner._tensor_cores
        # One workspace for all: it is used within a run, and runs follow each other.
        if owner._fixed is None:
            self.paged, self.shared = paged(workspace, "NHD"), paged(workspace, "NHD")
            self.decode = decode(workspace, "NHD", use_tensor_cores=cores)
        else:  # its steps only decode, and share nothing
            self.decode = owner._fixed.wrapper(decode, workspace, tensor_cores=cores)
        self._head_dim = head_dim
        self._options = {
            "num_qo_heads": heads,
            "num_kv_heads": kv_heads,
            "sm_scale": scale,
            "logits_soft_cap": soft_cap,
            "q_data_type": owner.query_dtype,
            "kv_data_type": owner.kv.dtype,
        }

    def plan(self, step: Step) -> None:
        """Nothing here waits for the device: what is read at once is in host memory."""
        if step.most == 1:
            self.decode.plan(
                indptr=step.kv_indptr,
                indices=step.kv_indices,
                last_page_len=step.last_page_len,
                head_dim=self._head_dim,
                page_size=step.page_size,
                **self._options,
            )
        else:
            self._plan_paged(self.paged, step, step.page_size, causal=True)
        if step.shared is not None:
            self._plan_paged(self.shared, step.shared, step.page_size, causal=False)

    def _plan_paged(
        self, wrapper: Any, part: Step | Shared, page_size: int, *, causal: bool
    ) -> None:
        wrapper.plan(
            qo_indptr=part.qo_indptr,
            paged_kv_indptr=part.kv_indptr,
            paged_kv_indices=part.kv_indices,
            paged_kv_last_page_len=part.last_page_len,
            head_dim_qk=self._head_dim,
            page_size=page_size,
            causal=causal,
            # Else it is found in a Python loop over the rows.
            max_token_per_sequence=part.most,
            **self._options,
        )


def _check(
    kv: torch.Tensor, heads: int, query_dtype: torch.dtype, scales: Sequence[tuple[float, float]]
) -> None:
    layers, kv_heads, head_dim = kv.shape[0], kv.shape[-2], kv.shape[-1]
    wrong = None
    if query_dtype not in QUERY_DTYPES:
        wrong = f"queries of {query_dtype}: serve in float16 or bfloat16"
    elif kv.dtype not in (query_dtype, CODED):
        wrong = f"KV of {kv.dtype}: keep it in {query_dtype} or in {CODED}"
    elif head_dim not in HEAD_DIMS:
        wrong = f"heads of {head_dim} elements, only of {HEAD_DIMS}"
    elif heads % kv_heads:
        wrong = f"{heads} heads over {kv_heads} heads of KV"
    if wrong is not None:
        raise ConfigError(f"FlashInfer has no kernels for {wrong}. Use another attention backend.")
    if len(scales) not in (1, layers) or not all(min(pair) > 0 for pair in scales):
        raise ValueError(f"scales must be 1 or {layers} pairs of positive numbers")


def _flashinfer() -> Any:
    try:
        return importlib.import_module("flashinfer")
    except Exception as error:  # its import has failed in more ways than ImportError
        raise ConfigError(
            f"FlashInfer cannot be imported ({error}). Install radixserve[gpu], or use another "
            "attention backend."
        ) from error


def _picked(states: torch.Tensor, merge: Merge) -> torch.Tensor:
    if merge.places is None:
        return states[merge.first : merge.first + merge.span]
    return states.index_select(0, merge.places)
