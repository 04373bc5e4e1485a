"""A GGUF file made into the directory that transformers reads: config.json and safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tqdm import tqdm
from transformers import AutoConfig
from transformers.integrations.gguf import read_gguf_metadata
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
    load_gguf_checkpoint,
)
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
        kind = TENSOR_PROCESSORS.get(metadata["general.architecture"], TensorProcessor)
        tensors = _tensors(path, model, kind(config=config), dtype)
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


def _tensors(
    path: Path, model: torch.nn.Module, processor: TensorProcessor, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Dequantized weights by the names of ``model``; none of the file's is left out."""
    names = get_gguf_hf_weights_map(model, processor)
    parsed: dict[str, dict[str, torch.Tensor]] = {"tensors": {}}  # processors write to it as well
    for tensor in tqdm(gguf.GGUFReader(path).tensors, desc="Dequantizing", unit=" tensors"):
        weights, name, _ = processor.process(
            weights=gguf.dequantize(tensor.data, tensor.tensor_type),
            name=tensor.name,
            tensor_key_mapping=names,
            parsed_parameters=parsed,
        )
        if name is None:
            continue
        if name not in names:
            raise ModelError(f"{path} holds {name}, which {type(model).__name__} does not have.")
        parsed["tensors"][names[name]] = torch.from_numpy(np.array(weights, copy=True)).to(dtype)
    return {name: tensor.to(dtype) for name, tensor in parsed["tensors"].items()}


def _check(path: Path, metadata: dict[str, Any], names: tuple[str, ...]) -> None:
    kind = metadata["general.architecture"]
    odd = [name for name in names if name.startswith(UNCONVERTED)]
    scaling = metadata.get(f"{kind}.rope.scaling.type", "none")
    if odd or scaling != "none":
        raise ModelError(
            f"{path} ({kind}) scales its rotary embeddings ({odd[0] if odd else scaling}), which "
            "cannot be converted from GGUF: use the model's safetensors files."
        )
