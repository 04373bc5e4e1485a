"""A model that transformers runs, with attention over our pages.

Imported only where such a model is loaded: what it needs of transformers takes as long to import
as torch does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from radixserve.attention import cpu
from radixserve.attention.backend import AttentionBackend
from radixserve.attention.reference import ReferenceAttention
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, ModelError, first_line
from radixserve.kernels.cpu.library import CpuKernels
from radixserve.kernels.cpu.weights import DTYPES, PageForm, check_heads
from radixserve.model import family, fp8_weights, survey
from radixserve.model.cuda_graphs import GraphDevice, Logits
from radixserve.model.decoder import Decoder
from radixserve.model.kv_storage import KvGeometry, KvStorage, code_of
from radixserve.model.loader import Description
from radixserve.model.pooler import States
from radixserve.model.transformers_attention import NAME

log = logging.getLogger(__name__)

BUFFERS = ("inv_freq", "attn.bias", "attn.masked_bias")
"""Ends of names that old checkpoints hold as weights and models compute themselves."""


class TransformersModel:
    """Transformers' own model, whose attention is ours."""

    graphs = 0
    follows = False

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
        backend = self._attention(trial.kv, geometry.page(survey.PAGE))
        own = survey.own_logits(self._decoder, described.max_model_len)
        check = partial(survey.self_check, self._decoder, backend, own, described.max_model_len)
        check()
        if config.torch_compile:
            self._compile(check)

    def on(self, kv: torch.Tensor, graphs: GraphDevice | None = None) -> Logits:
        """See ``Executable.on``."""
        backend = self._attention(kv, self.geometry.page(self._page_size))
        return partial(self._decoder.logits, backend=backend)

    def states(self, kv: torch.Tensor) -> States:
        """See ``Executable.states``."""
        backend = self._attention(kv, self.geometry.page(self._page_size))
        return partial(self._decoder.states, backend=backend)

    def _compile(self, check: Callable[[], None]) -> None:
        log.info("torch compiles this model, which may take minutes")
        self._decoder.compile()
        try:
            check()
        except Exception as error:  # compilers fail in their own ways
            raise ModelError(
                f"torch_compile: {type(self._decoder.model).__name__} cannot be compiled here: "
                f"{first_line(error)}. Leave torch_compile out."
            ) from error
        self.name += ", compiled"

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


def load(described: Description) -> Decoder:
    """The model, run by transformers.

    Raises:
        ModelError: its weights are missing or damaged.
    """
    model = weights(described)
    return Decoder(model.to(described.device), described.device)


def weights(described: Description) -> PreTrainedModel:
    """The model with its weights, on the CPU.

    Raises:
        ModelError: they are missing or damaged.
    """
    config, dtype = described.config, described.dtype
    if fp8_weights.readable(config) and family.unfit(config) is None:
        raise ModelError(
            f"{described.path}: weights in FP8 are read by radixserve's own decoders alone, and "
            "these need attention_backend auto, all weights of the model and no other, and on a "
            "CPU the native kernels: radixserve doctor shows these. Else serve a checkpoint in "
            "bfloat16."
        )
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if described.dummy:
        model = _dummy(architecture, config, dtype, described.seed)
    else:
        model = _from_safetensors(architecture, config, described.path, dtype)
    return model.requires_grad_(False).eval()


def _from_safetensors(
    architecture: type[PreTrainedModel], config: PreTrainedConfig, path: Path, dtype: torch.dtype
) -> PreTrainedModel:
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"{path} holds no weights: *.safetensors files are needed.")
    try:
        model, info = architecture.from_pretrained(
            str(path),
            config=config,
            dtype=dtype,
            attn_implementation=NAME,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise ModelError(f"{path}: the weights cannot be loaded: {first_line(error)}") from error
    missing = sorted(info["missing_keys"])
    odd = sorted(key for key in info["unexpected_keys"] if not key.endswith(BUFFERS))
    for what, keys in (("lack", missing), ("hold, beyond what the model has,", odd)):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise ModelError(
                f"{path}: the weights {what} {keys[0]}{more}: not a {architecture.__name__}."
            )
    return model


def _dummy(
    architecture: type[PreTrainedModel], config: PreTrainedConfig, dtype: torch.dtype, seed: int
) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model: PreTrainedModel = architecture.from_pretrained(
                None, config=config, state_dict={}, dtype=dtype, attn_implementation=NAME
            )
        except Exception as error:
            raise ModelError(
                f"{architecture.__name__} cannot be made from its config: {first_line(error)}"
            ) from error
    return model


def _has_kernels(geometry: KvGeometry) -> bool:
    try:
        check_heads(geometry.heads, geometry.kv_heads, geometry.head_dim)
    except ValueError:
        return False
    return geometry.dtype in DTYPES
