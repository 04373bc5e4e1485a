"""The compiled kernels as Python calls them: tensors in, tensors out, shapes checked."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_bool, c_float, c_int64, c_void_p
from typing import Any, Protocol

import torch

from radixserve.kernels.cpu.weights import (
    CODES,
    PANEL,
    Arena,
    DecoderShape,
    LayerWeights,
    Packed,
    PageForm,
    check_heads,
)


class _Batch(Structure):
    _fields_ = (
        ("rows", c_int64),
        ("tokens", c_int64),
        ("qo_indptr", c_void_p),
        ("kv_indptr", c_void_p),
        ("kv_indices", c_void_p),
        ("last_page_len", c_void_p),
        ("page_size", c_int64),
    )


class _Step(Structure):
    _fields_ = (
        ("batch", _Batch),
        ("token_ids", c_void_p),
        ("pages", c_void_p),
        ("offsets", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("sampled", c_void_p),
        ("samples", c_int64),
        ("kv", c_void_p),
        ("layer_bytes", c_int64),
        ("logits", c_void_p),
        ("states", c_void_p),
        ("together", c_bool),
    )


class _Shape(Structure):
    _fields_ = (
        ("layers", c_int64),
        ("hidden", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("inner", c_int64),
        ("vocabulary", c_int64),
        ("page_size", c_int64),
        ("code", c_int64),
        ("norm_epsilon", c_float),
        ("scale", c_float),
    )


class _Weight(Structure):
    _fields_ = (("data", c_void_p), ("scales", c_void_p))


_LAYER = {
    "attention_norm": c_void_p,
    "qkv": _Weight,
    "qkv_bias": c_void_p,
    "query_norm": c_void_p,
    "key_norm": c_void_p,
    "output": _Weight,
    "output_bias": c_void_p,
    "mlp_norm": c_void_p,
    "gate": _Weight,
    "up": _Weight,
    "down": _Weight,
}


class _Layer(Structure):
    _fields_ = (*_LAYER.items(), ("rotates", c_int64))


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "radix_features": (ctypes.c_char_p, ()),
    "radix_packed_elements": (c_int64, (c_int64, c_int64)),
    "radix_pack": (None, (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p)),
    "radix_multiply": (
        None,
        (c_int64, c_void_p, c_int64, POINTER(_Weight), c_int64, c_int64, c_int64, c_void_p),
    ),
    "radix_page_bytes": (c_int64, (c_int64,) * 5),
    "radix_attention_new": (c_void_p, (c_int64,) * 7),
    "radix_attention_free": (None, (c_void_p,)),
    "radix_attention_begin": (None, (c_void_p, POINTER(_Batch), c_int64)),
    "radix_attention_append": (None, (c_void_p,) * 4 + (c_int64, c_void_p, c_void_p)),
    "radix_attention_run": (None, (c_void_p,) * 4 + (c_float, c_float)),
    "radix_attention_read": (None, (c_void_p, POINTER(c_int64), POINTER(c_int64))),
    "radix_decoder_new": (
        c_void_p,
        (c_int64, c_int64, POINTER(_Shape), POINTER(_Layer), POINTER(_Weight), *(c_void_p,) * 2),
    ),
    "radix_decoder_free": (None, (c_void_p,)),
    "radix_decoder_run": (None, (c_void_p, POINTER(_Step))),
}


class CpuKernels:
    """The functions of the library that ``build.load`` opened."""

    def __init__(self, library: ctypes.CDLL):
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library

    @property
    def features(self) -> str:
        """``avx512_bf16``, ``avx512``, ``avx2`` or ``generic``: what it was compiled for."""
        name: bytes = self._library.radix_features()
        return name.decode()

    def packed_bytes(self, columns: int, depth: int, dtype: torch.dtype) -> int:
        """Bytes that ``pack`` takes from an arena; ``dtype`` is int8 where it quantizes."""
        elements: int = self._library.radix_packed_elements(columns, depth)
        return -(-elements * dtype.itemsize // 64) * 64

    def pack(self, weight: torch.Tensor, arena: Arena, *, int8: bool = False) -> Packed:
        """Pack ``weight``, [columns, depth] in fp32 or bf16, as a linear layer holds it.

        With ``int8`` each column keeps one byte an element and a scale: its largest size / 127.
        """
        columns, depth = weight.shape
        pair = _pair(weight.dtype)
        if depth % pair:
            raise ValueError(f"a depth of {depth} cannot be read in pairs")
        weight = weight.contiguous()
        size = self.packed_bytes(columns, depth, torch.int8 if int8 else weight.dtype)
        data = arena.take(size)
        scales = torch.empty(-(-columns // PANEL) * PANEL) if int8 else None
        self._library.radix_pack(
            weight.data_ptr(), columns, depth, pair, data.data_ptr(), _address(scales)
        )
        return Packed(data, scales, columns, depth, weight.dtype)

    def multiply(self, rows: torch.Tensor, weight: Packed, *, threads: int) -> torch.Tensor:
        """``rows``, [R, depth] in the weight's dtype, times the weight: fp32 [R, columns]."""
        _check(rows, weight.dtype, (len(rows), weight.depth))
        out = torch.empty(len(rows), weight.padded)
        self._library.radix_multiply(
            threads, rows.data_ptr(), len(rows), byref(_weight(weight)), weight.columns,
            weight.depth, _pair(weight.dtype), out.data_ptr(),
        )  # fmt: skip
        return out[:, : weight.columns]

    def page_bytes(self, form: PageForm) -> int:
        """Bytes of a KV page of one layer."""
        size: int = self._library.radix_page_bytes(
            _pair(form.dtype), form.page_size, form.kv_heads, form.head_dim, CODES[form.code]
        )
        return size

    def attention(
        self, kv: torch.Tensor, form: PageForm, heads: int, *, threads: int
    ) -> NativeAttention:
        """Attention over ``kv``, [layers, pages, ...], whose pages have ``form``."""
        _check_pages(kv, self.page_bytes(form))
        return NativeAttention(self._library, kv, form, heads, threads)

    def decoder(
        self,
        shape: DecoderShape,
        layers: Sequence[LayerWeights],
        head: Packed,
        embedding: torch.Tensor | None,
        norm: torch.Tensor,
        *,
        pages: PageForm,
        threads: int,
    ) -> NativeDecoder:
        """A decoder; without ``embedding`` ([vocabulary, hidden]) it is tied to ``head``."""
        weights = (layers, head, embedding, norm)
        return NativeDecoder(self._library, shape, weights, pages, self.page_bytes(pages), threads)


class StepArrays(Protocol):
    """The arrays of a step, contiguous and on the CPU: what ``PagedBatch`` holds."""

    page_size: int
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    last_page_len: torch.Tensor
    token_ids: torch.Tensor
    append_pages: torch.Tensor
    append_offsets: torch.Tensor
    sample_rows: torch.Tensor


class NativeAttention:
    """Causal paged attention, shared prefixes read once; one step at a time."""

    def __init__(
        self, library: ctypes.CDLL, kv: torch.Tensor, form: PageForm, heads: int, threads: int
    ):
        check_heads(heads, form.kv_heads, form.head_dim)
        self._library, self._kv, self._form, self._heads = library, kv, form, heads
        self._arrays: StepArrays | None = None
        self._handle = library.radix_attention_new(
            threads, _pair(form.dtype), form.page_size, form.kv_heads, form.head_dim,
            CODES[form.code], heads,
        )  # fmt: skip

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.radix_attention_free(self._handle)

    def begin(self, arrays: StepArrays, *, together: bool = True) -> None:
        """Plan a step; without ``together`` every row reads its whole context for itself."""
        self._arrays = arrays
        self._library.radix_attention_begin(self._handle, byref(_batch(arrays)), together)

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write ``key`` and ``value``, [T, kv_heads, head_dim], into the slots of the step."""
        arrays = self._step()
        shape = (len(arrays.token_ids), self._form.kv_heads, self._form.head_dim)
        key, value = key.contiguous(), value.contiguous()
        _check(key, self._form.dtype, shape)
        _check(value, self._form.dtype, shape)
        self._library.radix_attention_append(
            self._handle, self._kv[layer].data_ptr(), arrays.append_pages.data_ptr(),
            arrays.append_offsets.data_ptr(), len(key), key.data_ptr(), value.data_ptr(),
        )  # fmt: skip

    def run(
        self, layer: int, query: torch.Tensor, *, scale: float, soft_cap: float | None = None
    ) -> torch.Tensor:
        """[T, heads, head_dim] from a query of the same form."""
        query = query.contiguous()
        tokens = len(self._step().token_ids)
        _check(query, self._form.dtype, (tokens, self._heads, self._form.head_dim))
        out = torch.empty_like(query)
        self._library.radix_attention_run(
            self._handle, self._kv[layer].data_ptr(), query.data_ptr(), out.data_ptr(),
            scale, soft_cap or 0.0,
        )  # fmt: skip
        return out

    @property
    def read(self) -> tuple[int, int]:
        """Tokens of KV that the decoding rows of this step need, and that are read for them."""
        apart, together = c_int64(), c_int64()
        self._library.radix_attention_read(self._handle, byref(apart), byref(together))
        return apart.value, together.value

    def _step(self) -> StepArrays:
        if self._arrays is None:
            raise RuntimeError("attention is computed before begin")
        return self._arrays


class NativeDecoder:
    """A decoder of Llama's family, from token ids to logits."""

    def __init__(
        self,
        library: ctypes.CDLL,
        shape: DecoderShape,
        weights: tuple[Sequence[LayerWeights], Packed, torch.Tensor | None, torch.Tensor],
        pages: PageForm,
        page_bytes: int,
        threads: int,
    ):
        shape.check()
        layers, head, embedding, norm = weights
        self._library, self._shape, self._weights = library, shape, weights
        self._padded, self._page_bytes = head.padded, page_bytes
        described = _Shape(
            len(layers), shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.inner,
            shape.vocabulary, pages.page_size, CODES[pages.code], shape.norm_epsilon,
            shape.head_dim**-0.5,
        )  # fmt: skip
        self._handle = library.radix_decoder_new(
            threads, _pair(shape.dtype), byref(described),
            (_Layer * len(layers))(*(_layer(each) for each in layers)),
            byref(_weight(head)), _address(embedding), norm.data_ptr(),
        )  # fmt: skip

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.radix_decoder_free(self._handle)

    def run(
        self,
        arrays: StepArrays,
        kv: torch.Tensor,
        cosines: torch.Tensor,
        sines: torch.Tensor,
        *,
        together: bool = True,
    ) -> torch.Tensor:
        """Logits, fp32 [S, vocabulary], of ``arrays.sample_rows``; all new KV is written to ``kv``.

        ``cosines`` and ``sines`` are fp32 [T, head_dim / 2].
        """
        logits = torch.empty(len(arrays.sample_rows), self._padded)
        self._run(arrays, kv, (cosines, sines), together, logits=logits)
        return logits[:, : self._shape.vocabulary]

    def states(
        self,
        arrays: StepArrays,
        kv: torch.Tensor,
        cosines: torch.Tensor,
        sines: torch.Tensor,
        *,
        together: bool = True,
    ) -> torch.Tensor:
        """As ``run``, but what the head reads, behind the last norm: fp32 [S, hidden]."""
        states = torch.empty(len(arrays.sample_rows), self._shape.hidden)
        self._run(arrays, kv, (cosines, sines), together, states=states)
        return states

    def _run(
        self,
        arrays: StepArrays,
        kv: torch.Tensor,
        rotations: tuple[torch.Tensor, torch.Tensor],
        together: bool,
        *,
        logits: torch.Tensor | None = None,
        states: torch.Tensor | None = None,
    ) -> None:
        """Compute a step into one of both."""
        cosines, sines = rotations
        form = (len(arrays.token_ids), self._shape.head_dim // 2)
        _check(cosines, torch.float32, form)
        _check(sines, torch.float32, form)
        _check_pages(kv, self._page_bytes)
        step = _Step(
            _batch(arrays), arrays.token_ids.data_ptr(), arrays.append_pages.data_ptr(),
            arrays.append_offsets.data_ptr(), cosines.data_ptr(), sines.data_ptr(),
            arrays.sample_rows.data_ptr(), len(arrays.sample_rows), kv.data_ptr(),
            kv.stride(0) * kv.itemsize, _address(logits), _address(states), together,
        )  # fmt: skip
        self._library.radix_decoder_run(self._handle, byref(step))


def _batch(arrays: StepArrays) -> _Batch:
    """As the library reads it; valid while ``arrays`` live."""
    return _Batch(
        len(arrays.last_page_len), len(arrays.token_ids), arrays.qo_indptr.data_ptr(),
        arrays.kv_indptr.data_ptr(), arrays.kv_indices.data_ptr(),
        arrays.last_page_len.data_ptr(), arrays.page_size,
    )  # fmt: skip


def _pair(dtype: torch.dtype) -> int:
    return 4 // dtype.itemsize


def _check(tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or not tensor.is_contiguous():
        raise ValueError(
            f"{dtype} {list(shape)} is wanted, not {tensor.dtype} {list(tensor.shape)}"
        )


def _check_pages(kv: torch.Tensor, page_bytes: int) -> None:
    if kv.stride(1) * kv.itemsize != page_bytes or not kv.is_contiguous():
        raise ValueError(f"pages of {page_bytes} bytes are wanted, not KV of {list(kv.shape)}")


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _weight(weight: Packed) -> _Weight:
    return _Weight(weight.data.data_ptr(), _address(weight.scales))


def _layer(layer: LayerWeights) -> _Layer:
    parts = (getattr(layer, name) for name in _LAYER)
    return _Layer(
        *(_weight(part) if isinstance(part, Packed) else _address(part) for part in parts),
        int(layer.rotates),
    )
