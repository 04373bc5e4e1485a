"""A small model with random weights, for what does not depend on the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from radixserve.config import EngineConfig
from radixserve.engine.model_files import prepare
from radixserve.text.tokenizer import Tokenizer

CONTEXT = 32_768
"""Tokens."""
GEOMETRY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "dtype": "float32",
}


class Tiny(NamedTuple):
    config: Path
    """Its config.json, to be served with ``load_format="dummy"``."""
    tokenizer: Path
    """The demo model's."""


def tiny(folder: Path) -> Tiny:
    """Write the geometry into ``folder``."""
    tokenizer = prepare(EngineConfig()).tokenizer
    geometry = {**GEOMETRY, "vocab_size": Tokenizer.load(tokenizer).vocab_size}
    config = folder / "config.json"
    config.write_text(json.dumps(geometry), encoding="utf-8")
    return Tiny(config, tokenizer)
