"""Llama's family: which models belong to it, and which weights they have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from transformers import PreTrainedConfig

FAMILIES = {"llama", "mistral", "qwen2", "qwen3", "smollm3"}


class Stored(Protocol):
    """A weight where it lies: indexing it reads what is asked for."""

    def __getitem__(self, index: Any, /) -> torch.Tensor: ...


Tensors = Mapping[str, Stored]
"""Weights by name."""


def unfit(config: PreTrainedConfig) -> str | None:
    """Why a model of ``config`` is none of the family's plain decoders; None if it is one."""
    if config.model_type not in FAMILIES:
        return f"{config.model_type} is none of {', '.join(sorted(FAMILIES))}"
    if getattr(config, "quantization_config", None):
        return "its weights are quantized"
    if config.hidden_act != "silu" or getattr(config, "mlp_bias", False):
        return "its MLP is not a plain gated SiLU"
    return None


def head_size(config: PreTrainedConfig) -> int:
    """Elements of a head."""
    return int(
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )


def rotates(config: PreTrainedConfig, layer: int) -> bool:
    """Whether queries and keys of ``layer`` turn with their positions."""
    layers: list[int] | None = getattr(config, "no_rope_layers", None)
    return not layers or bool(layers[layer])  # SmolLM3's list says 1 where a layer does rotate


def checkpoint(path: Path) -> Tensors:
    """The tensors of all safetensors files in ``path``, none of them read yet.

    Raises:
        OSError, SafetensorError: a file cannot be read.
    """
    found: dict[str, Stored] = {}
    for file in sorted(path.glob("*.safetensors")):
        opened: Any = safe_open(file, framework="pt")
        found |= {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
    return found


def complete(config: PreTrainedConfig, tensors: Tensors) -> bool:
    """Whether ``tensors`` are the weights of a model of ``config``, no more and no less."""
    return set(tensors) == set(_names(config))


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
