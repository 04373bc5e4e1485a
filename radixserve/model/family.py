"""Llama's family: which models belong to it, and which weights they have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from transformers import PreTrainedConfig

from radixserve.model import fp8_weights

FAMILIES = {"llama", "mistral", "qwen2", "qwen3", "smollm3"}

ATTENTION_SCALE = re.compile(
    r"model\.layers\.(?P<layer>\d+)\.self_attn\."
    r"(?:(?:attn\.)?(?P<what>[qkv]|kv)_scale"
    r"|(?P<projection>[qkv])_proj\.(?:(?P=projection)_scale|output_scale))"
)
"""Scales of attention in FP8, which are no weights. As they are written by compressed-tensors and
llm-compressor (``k_scale``), vLLM (``attn.k_scale``), ModelOpt (``k_proj.k_scale``), AutoFP8 and
Quark (``k_proj.output_scale``), and once by AutoFP8 for both (``kv_scale``)."""


class Stored(Protocol):
    """A weight where it lies: indexing it reads what is asked for."""

    def __getitem__(self, index: Any, /) -> torch.Tensor: ...


Tensors = Mapping[str, Stored]
"""Weights by name."""


def unfit(config: PreTrainedConfig) -> str | None:
    """Why a model of ``config`` is none of the family's plain decoders; None if it is one."""
    if config.model_type not in FAMILIES:
        return f"{config.model_type} is none of {', '.join(sorted(FAMILIES))}"
    if _quantized(config) and not fp8_weights.readable(config):
        return "its weights are quantized"
    if config.hidden_act != "silu" or getattr(config, "mlp_bias", False):
        return "its MLP is not a plain gated SiLU"
    return None


def kv_scheme(config: PreTrainedConfig) -> dict[str, Any]:
    """What the checkpoint says of how KV is to be kept, as compressed-tensors words it."""
    told = getattr(config, "quantization_config", None)
    return (told.get("kv_cache_scheme") or {}) if isinstance(told, dict) else {}


def _quantized(config: PreTrainedConfig) -> bool:
    """Whether the weights are: a checkpoint may say that only KV is to be."""
    told = getattr(config, "quantization_config", None)
    if not told or not kv_scheme(config):
        return bool(told)
    return bool(told.get("config_groups") or told.get("quant_algo"))


def head_size(config: PreTrainedConfig) -> int:
    """Elements of a head."""
    return int(
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )


def rotates(config: PreTrainedConfig, layer: int) -> bool:
    """Whether queries and keys of ``layer`` turn with their positions."""
    layers: list[int] | None = getattr(config, "no_rope_layers", None)
    return not layers or bool(layers[layer])  # SmolLM3's list says 1 where a layer does rotate


def checkpoint(path: Path, config: PreTrainedConfig | None = None) -> Tensors:
    """The tensors of all safetensors files in ``path``, none of them read yet.

    With a ``config`` that says that they are in FP8, the plain weights that they stand for.

    Raises:
        OSError, SafetensorError: a file cannot be read.
        ModelError: a weight in FP8 has no scale that fits it.
    """
    found: dict[str, Any] = {}
    for file in sorted(path.glob("*.safetensors")):
        opened: Any = safe_open(file, framework="pt")
        found |= {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
    if config is not None and fp8_weights.readable(config):
        return fp8_weights.dequantized(config, found, path)
    return found


def complete(config: PreTrainedConfig, tensors: Tensors) -> bool:
    """Whether ``tensors`` are the weights of a model of ``config``, no more and no less.

    Scales of attention in FP8 may be there or not.
    """
    weights = {name for name in tensors if not ATTENTION_SCALE.fullmatch(name)}
    return weights == set(_names(config))


def _names(config: PreTrainedConfig) -> list[str]:
    names = ["model.embed_tokens.weight", "model.norm.weight"]
    if not config.tie_word_embeddings:
        names.append("lm_head.weight")
    for index in range(config.num_hidden_layers):
        at = f"model.layers.{index}."
        names += [f"{at}{norm}_layernorm.weight" for norm in ("input", "post_attention")]
        names += [f"{at}mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
        names += [f"{at}self_attn.{name}_proj.weight" for name in "qkvo"]
        names += [f"{at}self_attn.{name}_proj.bias" for name in _biased(config)]
        if config.model_type == "qwen3":
            names += [f"{at}self_attn.{name}_norm.weight" for name in "qk"]
    return names


def _biased(config: PreTrainedConfig) -> str:
    if config.model_type == "qwen2":
        return "qkv"
    return "qkvo" if getattr(config, "attention_bias", False) else ""
