"""Who computes a step: the native decoder where it can, else transformers with our attention."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from safetensors import SafetensorError

from radixserve.attention import cpu
from radixserve.attention.arrays import PagedBatch
from radixserve.attention.backend import AttentionBackend
from radixserve.attention.reference import ReferenceAttention
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError
from radixserve.kernels.cpu.library import CpuKernels
from radixserve.kernels.cpu.weights import DTYPES, PageForm, check_heads
from radixserve.kernels.kv_codes import Code
from radixserve.model import native, survey
from radixserve.model.kv_storage import KvGeometry, KvStorage
from radixserve.model.loader import Description, load, weights

log = logging.getLogger(__name__)

Logits = Callable[[PagedBatch], torch.Tensor]
"""Appends the KV of a step and returns the logits, [S, vocabulary], of its sampled rows."""


class Executable(Protocol):
    """A model with its weights in memory."""

    geometry: KvGeometry
    name: str
    """What computes it, for the log and for ``/v1/cache/stats``."""

    def on(self, kv: torch.Tensor) -> Logits:
        """The model over ``kv``, the memory of a ``KvStorage`` of its geometry."""


def executable(described: Description, config: EngineConfig) -> Executable:
    """The fastest way to run the model that ``config`` allows.

    Raises:
        ModelError: its weights cannot be read, or it needs what radixserve does not have.
    """
    threads = config.threads or cpu.available_cores()
    kernels = None
    if described.device.type == "cpu" and config.attention_backend != "reference":
        kernels = cpu.kernels()
    if kernels is not None and config.attention_backend == "auto":
        found = _native(described, config, kernels, threads)
        if found is not None:
            # All that is left to torch is small, and its idle threads would spin beside ours.
            torch.set_num_threads(1)
            return found
    if config.quantization != "none":
        raise ConfigError(
            f"quantization {config.quantization} needs the native decoder of a CPU, which does "
            "not run this model here: leave it at none."
        )
    torch.set_num_threads(threads)
    return _Transformers(described, config, kernels, threads)


class _Native:
    """The whole decoder in native code."""

    def __init__(self, model: native.NativeModel, geometry: KvGeometry, features: str):
        self._model, self.geometry = model, geometry
        self.name = f"native decoder ({features})"

    def on(self, kv: torch.Tensor) -> Logits:
        return partial(self._model.logits, kv=kv)


def _native(
    described: Description, config: EngineConfig, kernels: CpuKernels, threads: int
) -> _Native | None:
    unfit = native.unfit(described.config, described.dtype)
    if unfit is not None:
        log.info("transformers runs this model, not the native decoder: %s", unfit)
        return None
    try:
        tensors = _tensors(described)
    except (OSError, SafetensorError):
        return None  # whoever reads them next says what is wrong with them
    if not native.complete(described.config, tensors):
        return None
    geometry = native.geometry(described.config, described.dtype, code_of(config))
    model = native.NativeModel(
        described.config,
        described.dtype,
        tensors,
        kernels,
        pages=page_form(geometry, config.page_size),
        max_model_len=described.max_model_len,
        threads=threads,
        together=config.cascade_attention,
        int8=config.quantization == "int8",
    )
    kind = (
        f"{kernels.features}, int8 weights" if config.quantization == "int8" else kernels.features
    )
    return _Native(model, geometry, kind)


def _tensors(described: Description) -> native.Tensors:
    if not described.dummy:
        return native.checkpoint(described.path)
    state = weights(described).state_dict()
    if described.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return {name: partial(torch.Tensor.detach, tensor) for name, tensor in state.items()}


class _Transformers:
    """Transformers' own model, whose attention is ours."""

    def __init__(
        self, described: Description, config: EngineConfig, kernels: CpuKernels | None, threads: int
    ):
        self._decoder = load(described)
        geometry = survey.survey(self._decoder, described.max_model_len)
        self._kernels = kernels if _has_kernels(geometry) else None
        self.geometry = replace(geometry, code=code_of(config))
        if self._kernels is None and self.geometry.code != "none":
            raise ConfigError(
                f"kv_cache_dtype {config.kv_cache_dtype} needs the native kernels of a CPU, which "
                "this model or machine does not have: leave it at auto."
            )
        # Torch's idle threads spin for a while: with two cores ours would wait for theirs.
        self._threads = threads if threads > 2 else 1
        self._together = config.cascade_attention
        kind = "reference" if self._kernels is None else self._kernels.features
        self.name = f"transformers with {kind} attention"
        self._page_size = config.page_size
        trial = KvStorage(geometry, survey.PAGES, survey.PAGE, self._decoder.device)
        backend = self._attention(trial.kv, page_form(geometry, survey.PAGE))
        survey.self_check(self._decoder, backend, described.max_model_len)

    def on(self, kv: torch.Tensor) -> Logits:
        backend = self._attention(kv, page_form(self.geometry, self._page_size))
        return partial(self._decoder.logits, backend=backend)

    def _attention(self, kv: torch.Tensor, form: PageForm) -> AttentionBackend:
        if self._kernels is None:
            return ReferenceAttention(kv)
        return cpu.CpuAttention(
            self._kernels,
            kv,
            form,
            self.geometry.heads,
            threads=self._threads,
            together=self._together,
        )


def code_of(config: EngineConfig) -> Code:
    """How KV is kept."""
    return "none" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype


def page_form(geometry: KvGeometry, page_size: int) -> PageForm:
    """A page of ``geometry`` as the kernels know it."""
    return PageForm(page_size, geometry.kv_heads, geometry.head_dim, geometry.dtype, geometry.code)


def _has_kernels(geometry: KvGeometry) -> bool:
    try:
        check_heads(geometry.heads, geometry.kv_heads, geometry.head_dim)
    except ValueError:
        return False
    return geometry.dtype in DTYPES
