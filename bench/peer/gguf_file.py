"""The model's directory as a GGUF file of the same weights, for llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file


def write(directory: Path, target: Path) -> None:
    """Weights in bf16 and norms in fp32.

    Prompts are token ids; the tokenizer is for the server, which turns answers into text.
    Names and the order of the rows of q and k are those of llama.cpp's converter
    (``conversion/llama.py``): its rotary embedding pairs neighbours, transformers' pairs halves.
    """
    config = json.loads((directory / "config.json").read_bytes())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    _add_tokenizer(writer, directory, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(directory / "model.safetensors").items():
        known = names.get_name(name, try_suffixes=(".weight",))
        if known is None:
            raise ValueError(f"{name} has no place in a GGUF file")
        if name.endswith("q_proj.weight"):
            tensor = _pairs(tensor, heads)
        elif name.endswith("k_proj.weight"):
            tensor = _pairs(tensor, kv_heads)
        if tensor.ndim == 1:
            writer.add_tensor(known, tensor.float().numpy())
        else:
            raw = tensor.contiguous().view(torch.uint8).numpy()
            writer.add_tensor(known, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, directory: Path, config: dict[str, Any]) -> None:
    """Byte-level BPE as llama.cpp knows it under the name of this model's family."""
    tokenizer = json.loads((directory / "tokenizer.json").read_bytes())
    special = {each["content"] for each in tokenizer["added_tokens"]}
    vocabulary = tokenizer["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if t in special else kinds.NORMAL for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def _pairs(weights: torch.Tensor, heads: int) -> torch.Tensor:
    rows = weights.shape[0]
    return weights.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(rows, -1)
