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
from radixserve.attention.backend import AttentionBackend
from radixserve.attention.reference import ReferenceAttention
from radixserve.attention.staging import CudaDevice, Staging
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, ModelError
from radixserve.kernels.cpu.library import CpuKernels
from radixserve.model import family, fp8_kv, native, torch_decoder
from radixserve.model.cuda_graphs import GraphDevice, Logits, Room, with_graphs
from radixserve.model.kv_storage import KvGeometry, code_of
from radixserve.model.loader import Description
from radixserve.model.ops import FlashInferOps, Ops, TorchOps
from radixserve.model.parallel import ALONE, Parallel, check_size
from radixserve.model.pooler import States

log = logging.getLogger(__name__)

Attention = Callable[[torch.Tensor, KvGeometry], AttentionBackend]
"""Makes the attention over the memory of a ``KvStorage`` of that geometry, this rank's own."""


class Executable(Protocol):
    """A model with its weights in memory."""

    geometry: KvGeometry
    name: str
    """What computes it, for the log and for ``/v1/cache/stats``."""
    graphs: int
    """Bytes that its CUDA graphs hold for good; 0 if it has none."""
    follows: bool
    """Whether steps are launched one behind the other, on a device that works by itself: tokens
    that only it knows are taken from ``PagedBatch.unknown``."""

    def on(self, kv: torch.Tensor, graphs: GraphDevice | None = None) -> Logits:
        """The model over ``kv``, the memory of a ``KvStorage`` of its geometry.

        Where it has graphs and is given a device for them, it captures them now.
        """

    def states(self, kv: torch.Tensor) -> States | None:
        """As ``on``, but what the logits are made of; None where that cannot be had."""


def executable(
    described: Description, config: EngineConfig, parallel: Parallel = ALONE
) -> Executable:
    """The fastest way to run the model that ``config`` allows; the share of one rank of several.

    Raises:
        ModelError: its weights cannot be read, or it needs what radixserve does not have.
        ConfigError: ``config`` asks for what only another device or decoder has.
    """
    if described.device.type == "cuda":
        fp8_kv.check_gpu(described, config)
    threads = config.threads or max(1, cpu.available_cores() // parallel.size)
    on_gpu = described.device.type == "cuda" and config.attention_backend == "auto"
    if on_gpu or parallel.size > 1:
        if config.deterministic:
            raise _only_native("deterministic")
        torch.set_num_threads(threads)
        made = _torch(described, config, parallel)
        if made is not None:
            return made
    kernels = None
    if described.device.type == "cpu" and config.attention_backend != "reference":
        kernels = cpu.kernels()
    if kernels is not None and config.attention_backend == "auto":
        found = _native(described, config, kernels, threads)
        if found is not None:
            # All that is left to torch is small, and its idle threads would spin beside ours.
            torch.set_num_threads(1)
            return found
    if config.deterministic:
        raise _only_native("deterministic")
    if config.quantization != "none":
        raise _only_native(f"quantization {config.quantization}")
    torch.set_num_threads(threads)
    from radixserve.model.transformers_model import TransformersModel

    return TransformersModel(described, config, kernels, threads)


class _Native:
    """The whole decoder in native code."""

    graphs = 0
    follows = False

    def __init__(self, model: native.NativeModel, geometry: KvGeometry, features: str):
        self._model, self.geometry = model, geometry
        self.name = f"native decoder ({features})"

    def on(self, kv: torch.Tensor, graphs: GraphDevice | None = None) -> Logits:
        """See ``Executable.on``."""
        return partial(self._model.logits, kv=kv)

    def states(self, kv: torch.Tensor) -> States:
        """See ``Executable.states``."""
        return partial(self._model.states, kv=kv)


def _only_native(wish: str) -> ConfigError:
    return ConfigError(
        f"{wish} needs the native decoder of a CPU, which does not run this model here: "
        "leave it out."
    )


def _check_interpreted(config: EngineConfig, decoder: str) -> None:
    """Refuse to compile what is written for speed already."""
    if config.torch_compile:
        raise ConfigError(
            f"torch_compile is for models that run through transformers; this one runs in {decoder}"
            ", which has nothing for torch to compile: leave it out."
        )


def _native(
    described: Description, config: EngineConfig, kernels: CpuKernels, threads: int
) -> _Native | None:
    unfit = native.unfit(described.config, described.dtype)
    if unfit is not None:
        log.info("transformers runs this model, not the native decoder: %s", unfit)
        return None
    tensors = _tensors(described)
    if tensors is None:
        return None
    _check_interpreted(config, "the native decoder")
    geometry = native.geometry(described.config, described.dtype, code_of(config))
    model = native.NativeModel(
        described.config,
        described.dtype,
        tensors,
        kernels,
        pages=geometry.page(config.page_size),
        max_model_len=described.max_model_len,
        threads=threads,
        together=config.cascade_attention and not config.deterministic,
        int8=config.quantization == "int8",
    )
    kind = (
        f"{kernels.features}, int8 weights" if config.quantization == "int8" else kernels.features
    )
    return _Native(model, geometry, kind)


def _attention(described: Description, config: EngineConfig) -> Attention:
    """FlashInfer's kernels on a GPU, where they have the dtype; else plain torch."""
    if not _has_flashinfer(described):
        return lambda kv, geometry: ReferenceAttention(kv, geometry.scales)
    from radixserve.attention.flashinfer import FlashInferAttention

    def make(kv: torch.Tensor, geometry: KvGeometry) -> AttentionBackend:
        attention = FlashInferAttention(
            kv,
            geometry.heads,
            query_dtype=described.dtype,
            most_tokens=config.max_num_batched_tokens,
            scales=geometry.scales or ((1.0, 1.0),),
            together=config.cascade_attention,
        )
        attention.calibrate()
        return attention

    return make


def _has_flashinfer(described: Description) -> bool:
    return described.device.type == "cuda" and described.dtype != torch.float32


def graph_room(described: Description, config: EngineConfig, parallel: Parallel) -> Room | None:
    """What to capture CUDA graphs for; None where every step is told kernel by kernel.

    That is so with several ranks: their sums would be captured too, which nobody has tried.
    """
    if config.enforce_eager or parallel.size > 1 or not _has_flashinfer(described):
        return None
    row_bytes = described.config.vocab_size * described.dtype.itemsize
    return Room.of(config.max_num_seqs, described.max_model_len, config.page_size, row_bytes)


class _Torch:
    """The whole decoder in torch; ``attention`` may be any that reads the plain layout of KV.

    With ``room`` it decodes in CUDA graphs, if ``attention`` makes FlashInfer's.
    """

    def __init__(
        self,
        decoder: torch_decoder.TorchDecoder,
        geometry: KvGeometry,
        attention: Attention,
        name: str,
        room: Room | None,
        *,
        follows: bool,
    ):
        self._decoder, self.geometry, self._attention = decoder, geometry, attention
        self.name, self._room, self.follows = name, room, follows
        self.graphs = 0 if room is None else room.held

    def on(self, kv: torch.Tensor, graphs: GraphDevice | None = None) -> Logits:
        """See ``Executable.on``."""
        attention = self._attention(kv, self.geometry)
        eager = partial(self._decoder.logits, backend=attention)
        if self._room is None or graphs is None:
            return eager
        from radixserve.attention.flashinfer import FlashInferAttention

        assert isinstance(attention, FlashInferAttention)
        return with_graphs(eager, self._decoder.forward, attention, self._room, graphs)

    def states(self, kv: torch.Tensor) -> None:
        """Not built."""


def _torch(described: Description, config: EngineConfig, parallel: Parallel) -> _Torch | None:
    """None, where there is one rank and transformers can run what this decoder cannot."""
    if parallel.size > 1:
        check_size(described.config, parallel.size)
    unfit = family.unfit(described.config)
    if unfit is not None:
        log.info("transformers runs this model, not the decoder for GPUs: %s", unfit)
        return None
    tensors = _tensors(described)
    if tensors is None:
        if parallel.size == 1:
            return None
        raise ModelError(
            f"{described.path}: the weights are not all there, are more than the model has, or "
            "cannot be read. With tensor_parallel_size 1 the message names them."
        )
    _check_interpreted(config, "radixserve's own decoder in torch")
    _check_plain(config)
    on_gpu, coded = described.device.type == "cuda", code_of(config) != "none"
    scales = fp8_kv.written(described, tensors) if coded else None
    decoder = torch_decoder.TorchDecoder(
        described.config,
        described.dtype,
        tensors,
        _ops(described),
        device=described.device,
        max_model_len=described.max_model_len,
        parallel=parallel,
        staging=Staging(CudaDevice(described.device)) if on_gpu else None,
    )
    geometry = torch_decoder.geometry(described.config, described.dtype, parallel)
    if coded:
        scales = scales or fp8_kv.measured(described, decoder, geometry, parallel)
        geometry = replace(geometry, scales=scales)
    ranks = f", {parallel.size} ranks" if parallel.size > 1 else ""
    room = graph_room(described, config, parallel)
    graphs = "" if room is None else ", CUDA graphs"
    name = f"torch decoder ({described.device.type}{ranks}{graphs})"
    attention = _attention(described, config)
    return _Torch(decoder, geometry, attention, name, room, follows=on_gpu and parallel.size == 1)


def _check_plain(config: EngineConfig) -> None:
    refused = (("quantization", "int8", "none"), ("kv_cache_dtype", "int8", "auto"))
    for name, value, plain in refused:
        if getattr(config, name) == value:
            raise ConfigError(
                f"{name} {value} needs the native kernels of a CPU and one rank: "
                f"leave it at {plain}."
            )


def _ops(described: Description) -> Ops:
    if not _has_flashinfer(described):
        return TorchOps()
    try:
        return FlashInferOps()
    except Exception as error:  # its import fails in many ways where a part of it is missing
        log.warning("layers run in plain torch, without flashinfer: %r", error)
        return TorchOps()


def _tensors(described: Description) -> family.Tensors | None:
    """The model's weights; None if they are not complete, or cannot be read: transformers, which
    tries next, says what is wrong with them."""
    if described.dummy and described.device.type == "cuda":
        from radixserve.model.dummy import DummyTensors

        return DummyTensors(described.config, described.dtype, described.seed, described.device)
    if described.dummy:
        from radixserve.model.transformers_model import weights

        state = weights(described).state_dict()
        if described.config.tie_word_embeddings:
            state.pop("lm_head.weight", None)
        tensors: family.Tensors = {name: tensor.detach() for name, tensor in state.items()}
    else:
        try:
            tensors = family.checkpoint(described.path, described.config)
        except (OSError, SafetensorError):
            return None
    return tensors if family.complete(described.config, tensors) else None
