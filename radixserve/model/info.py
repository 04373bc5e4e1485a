"""What an engine knows of its model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the engine needs to know of a model that is loaded."""

    vocab_size: int
    max_model_len: int
    """Tokens of prompt and answer together, at most what all pages hold."""
    eos_token_ids: frozenset[int]
    num_pages: int
    """Pages allocated, the scratch page included."""
    dtype: str
    backend: str
    """What computes a step."""
    kv_bytes_per_token: int
    sampling_defaults: dict[str, float | int]
    """What generation_config.json sets (temperature, top_p, top_k, min_p, repetition_penalty)."""
    embedding_size: int | None = None
    """Numbers of the vector that a prompt is pooled to; None where there can be none."""
    kv_format: str | None = None
    """What KV may be shared with: see ``KvGeometry.format``."""
