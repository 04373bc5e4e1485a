"""A model without weights: its sizes, and the bytes and operations that its steps cannot avoid."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BYTES = 2
"""Of an element in bf16."""

LLAMA_3_1_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
TINY = LLAMA_3_1_8B | {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BUILT_IN = {"llama-3.1-8b": LLAMA_3_1_8B, "tiny": TINY}


@dataclass(frozen=True, slots=True)
class Geometry:
    """``config`` is what a ``config.json`` of Llama's family holds; weights and KV are bf16."""

    name: str
    config: dict[str, Any]

    @classmethod
    def named(cls, name: str) -> Geometry:
        """One of ``BUILT_IN``, or that of a config file.

        Raises:
            OSError, ValueError: it is neither.
        """
        if name in BUILT_IN:
            return cls(name, BUILT_IN[name])
        return cls(name, json.loads(Path(name).read_text(encoding="utf-8")))

    @property
    def layers(self) -> int:
        return int(self.config["num_hidden_layers"])

    @property
    def kv_heads(self) -> int:
        return int(self.config.get("num_key_value_heads") or self.config["num_attention_heads"])

    @property
    def head_dim(self) -> int:
        heads = int(self.config["num_attention_heads"])
        return int(self.config.get("head_dim") or self.config["hidden_size"] // heads)

    @property
    def vocabulary(self) -> int:
        return int(self.config["vocab_size"])

    @property
    def kv_bytes(self) -> int:
        """Of one token, in all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * BYTES

    @property
    def weight_bytes(self) -> int:
        """That a step reads: all but the embeddings, of which it reads its tokens' rows."""
        hidden = self._hidden
        norms = (2 * self.layers + 1) * hidden
        layers = self.layers * (self._qkv + self._behind)
        return (layers + norms + self.vocabulary * hidden) * BYTES

    def decode_bytes(self, kv_tokens: float) -> float:
        """That a decoding step reads: the weights, and the KV of ``kv_tokens``, each once."""
        return self.weight_bytes + kv_tokens * self.kv_bytes

    def prefill_operations(self, tokens: int) -> int:
        """To compute a prompt of ``tokens`` of which nothing is cached, and the logits of its end.

        A multiplication and an addition are two. What follows attention in the last layer is
        needed for the last token alone; a token looks at itself and all before it.
        """
        products = 2 * tokens * (self.layers * self._qkv + (self.layers - 1) * self._behind)
        last = 2 * (self._behind + self.vocabulary * self._hidden)
        pairs = tokens * (tokens + 1) // 2
        return products + last + self.layers * 4 * self._width * pairs

    @property
    def _hidden(self) -> int:
        return int(self.config["hidden_size"])

    @property
    def _width(self) -> int:
        """Of all heads of queries together."""
        return int(self.config["num_attention_heads"]) * self.head_dim

    @property
    def _qkv(self) -> int:
        """Elements of a layer's weights up to attention."""
        return self._hidden * (self._width + 2 * self.kv_heads * self.head_dim)

    @property
    def _behind(self) -> int:
        """Elements of a layer's weights behind attention."""
        return self._hidden * (self._width + 3 * int(self.config["intermediate_size"]))
