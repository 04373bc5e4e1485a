"""Tiny random models of several families, written as a checkpoint directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from tests.text.tiny import tiny_tokenizer_dir

VOCABULARY = 256
CONTEXT = 256
_LLAMA_LIKE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}

FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_LLAMA_LIKE, head_dim=16),
    "qwen2": lambda: Qwen2Config(**_LLAMA_LIKE, use_sliding_window=False),
    "qwen3": lambda: Qwen3Config(**_LLAMA_LIKE, head_dim=32, tie_word_embeddings=True),
    "mistral": lambda: MistralConfig(**_LLAMA_LIKE, sliding_window=None),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_positions=CONTEXT,
        bos_token_id=1,
        eos_token_id=2,
    ),
}

_LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip


def small(*, heads: int, inner: int) -> dict[str, Any]:
    """Settings of a small model of Llama's family."""
    return {
        "vocab_size": 250,
        "hidden_size": 48,
        "intermediate_size": inner,
        "num_hidden_layers": 4,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }


def forms(small: dict[str, Any]) -> dict[str, PreTrainedConfig]:
    """What models of Llama's family differ in, by name; the first, "plain", has none of it."""
    heads = small["num_attention_heads"]
    return {
        "plain": LlamaConfig(**small),
        "tied embeddings": LlamaConfig(**small, tie_word_embeddings=True),
        "biases": LlamaConfig(**small, attention_bias=True),
        "large heads": LlamaConfig(**small | {"head_dim": 128}),
        "one KV head": LlamaConfig(**small | {"num_key_value_heads": 1}),
        "a KV head for each head": LlamaConfig(**small | {"num_key_value_heads": heads}),
        "stretched positions": LlamaConfig(**small, rope_parameters=_LLAMA3_ROPE),
        "biases of queries, keys and values": Qwen2Config(
            **small | {"hidden_size": 16 * heads}, use_sliding_window=False
        ),
        "norms of queries and keys": Qwen3Config(**small),
        "layers that do not rotate": SmolLM3Config(**small, no_rope_layers=[1, 1, 0, 1]),
    }


def model(config: PreTrainedConfig, *, seed: int = 0, std: float = 0.3) -> PreTrainedModel:
    """A model of ``config`` in fp32, its weights N(0, std), so that logits do not nearly tie.

    Norms and everything else that starts at one get N(1, std / 3).
    """
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for parameter in made.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = bool((parameter == 1).all())
        parameter.data = 1 + noise * std / 3 if is_norm else noise * std
    made.tie_weights()
    return made.eval()


def write(directory: Path, family: str = "llama", *, seed: int = 0) -> Path:
    """A checkpoint of ``family``, a key of FAMILIES, in ``directory``, which is returned."""
    return save(directory, FAMILIES[family](), seed=seed)


def save(directory: Path, config: PreTrainedConfig, *, seed: int = 0) -> Path:
    """A checkpoint of ``config`` in ``directory``, which is returned."""
    model(config, seed=seed).save_pretrained(directory)
    return directory


def speaking(
    directory: Path, *, vocab_size: int = 266, length: int = CONTEXT, **tokenizer: Any
) -> Path:
    """A tiny Llama with the tiny tokenizer, of which each byte is a token, in ``directory``.

    Args:
        length: Tokens of its context.
        tokenizer: Arguments of ``tiny_tokenizer_dir``.
    """
    config = FAMILIES["llama"]()
    config.vocab_size, config.max_position_embeddings = vocab_size, length
    return tiny_tokenizer_dir(save(directory, config), **tokenizer)


def truth(directory: Path, prompt: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Logits of transformers' own model, float32[len(prompt), vocabulary]."""
    plain = AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager"
    )
    with torch.inference_mode():
        found: torch.Tensor = plain(torch.tensor([prompt]), use_cache=False).logits[0]
    return found.float()
