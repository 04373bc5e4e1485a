"""A stand-in for FlashInfer, which computes on the CPU and forgives nothing.

Its wrappers have the real signatures, insist on what the kernels need of their arguments, and read
the very arrays that they are given.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch

from tests.attention.fake_device import FakeDevice, RaceError
from tests.attention.fake_kernels import Fixed, Planned, attend, merge, tiles_bytes


def recorded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the arguments of each call as they were passed."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = method.__name__
        if self is not self.library:
            name = f"{type(self).__name__}.{name}"
        self.library.calls.append((name, args, kwargs))
        return method(self, *args, **kwargs)

    return call


class _Wrapper:
    library: FakeFlashInfer
    planned: Planned | None = None
    fixed: Fixed | None = None

    def _begin(self, workspace: torch.Tensor, kv_layout: str) -> None:
        assert kv_layout == "NHD"
        assert workspace.dtype == torch.uint8
        self._workspace = workspace
        self._staging = self.library.device.pinned(1)

    def _plan(
        self,
        qo_indptr: torch.Tensor | None,
        kv_indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        **how: Any,
    ) -> None:
        device, page_size = self.library.device, how["heads"][3]
        host = [kv_indptr, last_page_len] + ([] if qo_indptr is None else [qo_indptr])
        assert all(device.is_pinned(each) for each in host), "read by the host: must be pinned"
        assert device.holds(indices), "must be on the device"
        for each in (*host, indices):
            assert each.dtype == torch.int32
            assert each.ndim == 1
            assert each.is_contiguous()
        if self.fixed is not None:
            rows = len(self.fixed.last_page_len)
            if len(last_page_len) != rows:
                raise ValueError("The batch size should be fixed in cudagraph mode")
            if len(indices) > len(self.fixed.indices):
                raise ValueError("The size of indices should be less than the allocated buffer")
        if qo_indptr is None:
            qo_indptr = torch.arange(len(last_page_len) + 1, dtype=torch.int32)
        for indptr in (qo_indptr, kv_indptr):
            assert len(indptr) == len(last_page_len) + 1
            assert indptr[0] == 0
            assert (indptr.diff() > 0).all(), "no row without tokens or pages"
        assert kv_indptr[-1] == len(indices)
        assert ((last_page_len >= 1) & (last_page_len <= page_size)).all()
        if device.stream.reads(self._staging):
            raise RaceError("planned again while the plan before is still copied")
        if self.fixed is None:
            self._staging += 1
            for each in (self._staging, *host):
                device.stream.copy(each)
        else:
            self._plan_fixed(self.fixed, kv_indptr, indices, last_page_len)
        copies = [each.clone() for each in (qo_indptr, kv_indptr, last_page_len)]
        tokens = int(qo_indptr[-1])
        self.planned = Planned(tokens, *copies, indices, indices.clone(), **how)

    def _plan_fixed(
        self,
        fixed: Fixed,
        kv_indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
    ) -> None:
        stream = self.library.device.stream
        assert fixed.plan is not None, "the workspace for plans is 8 MiB a wrapper"
        stream.copy(kv_indptr, fixed.indptr)
        stream.copy(last_page_len, fixed.last_page_len)
        stream.give(lambda: fixed.indices[: len(indices)].copy_(indices), fills=True)
        size = len(kv_indptr) + 1
        self._staging[0], self._staging[1:size] = fixed.number, kv_indptr
        stream.copy(self._staging[:size], fixed.plan[:size])

    def _run(
        self,
        query: torch.Tensor,
        kv: torch.Tensor,
        k_scale: float | None,
        v_scale: float | None,
        out: torch.Tensor | None,
        return_lse: bool,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        plan = self.planned
        assert plan is not None, "run before plan"
        heads, kv_heads, head_dim, page_size = plan.heads
        assert kv.shape[1:] == (2, page_size, kv_heads, head_dim)
        assert (query.dtype, kv.dtype) == plan.dtypes
        assert query.shape == (plan.tokens, heads, head_dim)
        assert query.is_contiguous()
        for scale in (k_scale, v_scale):
            assert scale is None or type(scale) is float
        result = torch.empty_like(query) if out is None else out
        assert (result.shape, result.dtype) == (query.shape, query.dtype)
        lse = query.new_empty(query.shape[:2], dtype=torch.float32)
        fixed = self.fixed

        def kernel() -> None:
            if fixed is None:
                assert torch.equal(plan.indices, plan.indices_then), "indices were overwritten"
                arrays = (plan.qo_indptr, plan.kv_indptr, plan.indices, plan.last_page_len)
            else:
                arrays = fixed.arrays()
            scale = plan.scale * (k_scale or 1.0)
            attend(query, kv, *arrays, plan.causal, scale, plan.soft_cap, result, lse)
            result.mul_(v_scale or 1.0)

        if query.device.type != "meta":
            self.library.device.stream.launch(kernel)
        return (result, lse) if return_lse else result


class _Decode(_Wrapper):
    @recorded
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
    ) -> None:
        self._begin(float_workspace_buffer, kv_layout)
        self.use_tensor_cores = use_tensor_cores
        if not use_cuda_graph:
            return
        indptr, indices = paged_kv_indptr_buffer, paged_kv_indices_buffer
        last_page_len = paged_kv_last_page_len_buffer
        assert indptr is not None
        assert indices is not None
        assert last_page_len is not None
        assert len(indptr) == len(last_page_len) + 1
        for each in (indptr, indices, last_page_len):
            assert self.library.device.holds(each), "must be on the device"
            assert (each.dtype, each.ndim, each.stride(0)) == (torch.int32, 1, 1)
        self.fixed = Fixed(next(self.library.numbers), indptr, indices, last_page_len)

    @recorded
    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor
    ) -> None:
        assert self.fixed is not None
        assert self.library.device.holds(int_workspace_buffer), "must be on the device"
        for each in (float_workspace_buffer, int_workspace_buffer):
            assert each.dtype == torch.uint8
        assert int_workspace_buffer.storage_offset() == 0, "must be aligned"
        self._workspace = float_workspace_buffer
        self.fixed.plan = int_workspace_buffer.view(torch.int32)
        self._staging = self.library.device.pinned(len(self.fixed.plan))

    @recorded
    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        o_data_type: torch.dtype | None = None,
        data_type: torch.dtype | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
    ) -> None:
        if self.fixed is not None and self.use_tensor_cores:
            needed = tiles_bytes(len(last_page_len), num_qo_heads, num_kv_heads, head_dim)
            assert needed <= self._workspace.numel(), "Buffer overflow when allocating memory"
        self._plan(
            None,
            indptr,
            indices,
            last_page_len,
            heads=(num_qo_heads, num_kv_heads, head_dim, page_size),
            causal=False,
            scale=head_dim**-0.5 if sm_scale is None else sm_scale,
            soft_cap=logits_soft_cap or 0.0,
            dtypes=(q_data_type, kv_data_type or q_data_type),
        )

    @recorded
    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor,
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        assert not args
        return self._run(q, paged_kv_cache, k_scale, v_scale, out, return_lse)


class _Prefill(_Wrapper):
    @recorded
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        paged_kv_indptr_buf: torch.Tensor | None = None,
        paged_kv_indices_buf: torch.Tensor | None = None,
        paged_kv_last_page_len_buf: torch.Tensor | None = None,
        custom_mask_buf: torch.Tensor | None = None,
        mask_indptr_buf: torch.Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        self._begin(float_workspace_buffer, kv_layout)

    @recorded
    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        o_data_type: torch.dtype | None = None,
        non_blocking: bool = True,
        max_token_per_sequence: int | None = None,
    ) -> None:
        assert max_token_per_sequence in (None, int(qo_indptr.diff().max()))
        self._plan(
            qo_indptr,
            paged_kv_indptr,
            paged_kv_indices,
            paged_kv_last_page_len,
            heads=(num_qo_heads, num_kv_heads, head_dim_qk, page_size),
            causal=causal,
            scale=head_dim_qk**-0.5 if sm_scale is None else sm_scale,
            soft_cap=logits_soft_cap or 0.0,
            dtypes=(q_data_type, kv_data_type or q_data_type),
        )

    run = _Decode.run


class FakeFlashInfer:
    """The module; ``calls`` are all calls that were made: name, arguments, keyword arguments."""

    __version__ = "fake"

    def __init__(self, device: FakeDevice) -> None:
        self.library, self.device = self, device
        self.numbers = itertools.count(1)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        mine = {"library": self}
        decode, paged = "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"
        self.BatchDecodeWithPagedKVCacheWrapper = type(decode, (_Decode,), mine)
        self.BatchPrefillWithPagedKVCacheWrapper = type(paged, (_Prefill,), mine)

    def named(self, name: str) -> list[dict[str, Any]]:
        """Keyword arguments of the calls of ``name``, which may be the end of a name."""
        return [kwargs for each, _, kwargs in self.calls if each.endswith(name)]

    @recorded
    def append_paged_kv_cache(
        self,
        append_key: torch.Tensor,
        append_value: torch.Tensor,
        batch_indices: torch.Tensor,
        positions: torch.Tensor,
        paged_kv_cache: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_last_page_len: torch.Tensor,
        kv_layout: str = "NHD",
    ) -> None:
        tokens, page_size = len(append_key), paged_kv_cache.shape[2]
        for each in (batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len):
            assert self.device.holds(each), "must be on the device"
            assert each.dtype == torch.int32
            assert each.ndim == 1
            assert each.is_contiguous()
        assert len(batch_indices) == len(positions) == tokens
        assert len(kv_indptr) == len(kv_last_page_len) + 1
        for each in (append_key, append_value):
            assert each.dtype == paged_kv_cache.dtype
            assert each.shape == (tokens, *paged_kv_cache.shape[3:])
            assert each.stride(-1) == 1

        def kernel() -> None:
            assert kv_indptr[-1] == len(kv_indices)
            lengths = (kv_indptr.diff() - 1) * page_size + kv_last_page_len
            assert ((kv_last_page_len >= 1) & (kv_last_page_len <= page_size)).all()
            assert (positions < lengths[batch_indices]).all(), "new tokens belong to the lengths"
            pages = kv_indices[kv_indptr[batch_indices] + positions // page_size]
            paged_kv_cache[pages, 0, positions % page_size] = append_key
            paged_kv_cache[pages, 1, positions % page_size] = append_value

        if paged_kv_cache.device.type != "meta":
            self.device.stream.launch(kernel)

    @recorded
    def merge_state_in_place(
        self,
        v: torch.Tensor,
        s: torch.Tensor,
        v_other: torch.Tensor,
        s_other: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> None:
        tokens, heads, head_dim = v.shape
        assert v.dtype in (torch.float16, torch.bfloat16)
        assert heads * head_dim // 8 <= 1024, "more threads than a block can have"
        assert v_other.shape == v.shape
        assert v_other.dtype == v.dtype
        assert s.shape == s_other.shape == (tokens, heads)
        assert s.dtype == s_other.dtype == torch.float32
        for each in (v, s, v_other, s_other):
            assert each.is_contiguous()
        if mask is not None:
            assert mask.shape == (tokens,)
            assert mask.dtype == torch.uint8
            assert self.device.holds(mask)
        if v.device.type != "meta":
            self.device.stream.launch(lambda: merge(v, s, v_other, s_other, mask))
