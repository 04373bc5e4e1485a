"""A GGUF file made into the directory that transformers reads: config.json and safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.integrations.gguf import read_gguf_metadata
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from radixserve.errors import ModelError

UNCONVERTED = ("rope_freqs.", "rope_factors_long.", "rope_factors_short.")
"""Tensors that change rotary embeddings and that transformers leaves out in silence."""


def convert(path: Path, directory: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write config.json, generation_config.json and model.safetensors of ``path``.

    Weights are dequantized to ``dtype``; names, shapes and the order of rows are mapped by
    transformers, which takes some seconds. ``directory`` must exist.

    Raises:
        ModelError: the file is damaged, or of a kind that would be converted wrongly.
    """
    try:
        metadata, names = read_gguf_metadata(str(path))
        _check(path, metadata, names)
        config = load_gguf_checkpoint(str(path))["config"]
        model_config = AutoConfig.for_model(**config)
        if type(model_config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise ModelError(f"{path} holds a {model_config.model_type}: not a causal model.")
        architecture = MODEL_FOR_CAUSAL_LM_MAPPING[type(model_config)]
        with torch.device("meta"):
            model = architecture(model_config)
        tensors = load_gguf_checkpoint(
            str(path), return_tensors=True, model_to_load=model, torch_dtype=dtype
        )["tensors"]
    except ModelError:
        raise
    except Exception as error:  # readers of damaged files fail in every way there is
        raise ModelError(f"{path} cannot be read as GGUF: {error}") from error
    tied = set(model.all_tied_weights_keys) if model_config.tie_word_embeddings else set()
    missing = sorted({name for name, _ in model.named_parameters()} - set(tensors) - tied)
    if missing:
        raise ModelError(f"{path} lacks {missing[0]}: not a complete {architecture.__name__}.")
    model_config.architectures = [architecture.__name__]
    model_config.dtype = dtype
    model_config.save_pretrained(directory)
    eos = {"eos_token_id": model_config.eos_token_id, "bos_token_id": model_config.bos_token_id}
    (directory / "generation_config.json").write_text(json.dumps(eos), encoding="utf-8")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _check(path: Path, metadata: dict[str, Any], names: tuple[str, ...]) -> None:
    kind = metadata["general.architecture"]
    odd = [name for name in names if name.startswith(UNCONVERTED)]
    scaling = metadata.get(f"{kind}.rope.scaling.type", "none")
    if odd or scaling != "none":
        raise ModelError(
            f"{path} ({kind}) scales its rotary embeddings ({odd[0] if odd else scaling}), which "
            "cannot be converted from GGUF: use the model's safetensors files."
        )
