"""A tiny model written as a GGUF file, as llama.cpp's converter would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import torch
from transformers import PreTrainedModel

from radixserve.text.vocabulary import byte_level_alphabet
from tests.model import tiny

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
Extra = Callable[[gguf.GGUFWriter], None]


def model(family: str = "llama") -> PreTrainedModel:
    """Random weights of ``family``, with a token for each byte and a few more."""
    config = tiny.FAMILIES[family]()
    config.vocab_size = len(SPECIALS) + 256 + 1
    config.bos_token_id, config.eos_token_id = 0, 2
    return tiny.model(config)


def write(
    path: Path,
    source: PreTrainedModel,
    *,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: Extra = lambda writer: None,
) -> Path:
    """Write ``source``, a Llama or Qwen2, and a byte-level tokenizer to ``path``."""
    config = source.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer)
    names = gguf.get_tensor_name_map(
        getattr(gguf.MODEL_ARCH, config.model_type.upper()), config.num_hidden_layers
    )
    for name, weight in source.state_dict().items():
        if config.model_type == "llama":
            weight = _permuted(name, weight, config.num_attention_heads, config.num_key_value_heads)
        kind = quantization if weight.dim() > 1 else gguf.GGMLQuantizationType.F32
        data = gguf.quantize(weight.contiguous().numpy(), kind)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), data, raw_dtype=kind)
    extra(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _permuted(name: str, weight: torch.Tensor, heads: int, kv_heads: int) -> torch.Tensor:
    """Rows of q and k in the order of llama.cpp's rotary embedding: pairs stand together."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weight
    count = heads if "q_proj" in name else kv_heads
    halves = weight.view(count, 2, -1, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    letters = sorted(byte_level_alphabet(), key=byte_level_alphabet().__getitem__)
    tokens = [*SPECIALS, *letters, "he"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * 257)
    writer.add_token_merges(["h e"])
    writer.add_chat_template(CHATML)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
