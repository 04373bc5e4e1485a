"""Who computes a step: the native decoder where it can, else transformers with our attention."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from safetensors import SafetensorError

from radixserve.attention import cpu
from radixserve.attention.arrays import PagedBatch
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError
from radixserve.kernels.cpu.library import CpuKernels
from radixserve.model import native
from radixserve.model.kv_storage import KvGeometry, code_of
from radixserve.model.loader import Description

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
    from radixserve.model.transformers_model import TransformersModel

    return TransformersModel(described, config, kernels, threads)


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
        pages=geometry.page(config.page_size),
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
    from radixserve.model.transformers_model import weights

    state = weights(described).state_dict()
    if described.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return {name: partial(torch.Tensor.detach, tensor) for name, tensor in state.items()}
