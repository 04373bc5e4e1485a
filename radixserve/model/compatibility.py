"""Which models can be served, told from their config: refused by name, never computed wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from radixserve.errors import ConfigError, ModelError

ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
CAUSAL_SUFFIXES = ("ForCausalLM", "LMHeadModel")
MODALITIES = ("vision_config", "audio_config", "audio_encoder_config")
SINKS = {"gpt_oss"}


def check_config(config: PreTrainedConfig, max_model_len: int | None) -> int:
    """Refuse what cannot be served; the longest context, in tokens, to serve it with.

    Raises:
        ModelError: the model needs what radixserve does not have; the message names it.
        ConfigError: ``max_model_len`` is more than the model was made for, or has to be given.
    """
    name = (config.architectures or [config.model_type])[0]
    _check_architecture(config, name)
    if config.model_type in SINKS:
        raise ModelError(f"{name} uses attention sinks, which are not supported.")
    odd = sorted(set(getattr(config, "layer_types", None) or ()) - ATTENTION_LAYERS)
    if odd:
        raise ModelError(
            f"{name} has layers of type {', '.join(odd)}; only models whose layers are all "
            "attention are supported (no state-space, linear-attention or hybrid models)."
        )
    length = _longest(config, name, max_model_len)
    _check_window(config, name, length)
    _check_positions(config, name, length)
    return length


def _check_architecture(config: PreTrainedConfig, name: str) -> None:
    kind = config.model_type
    if config.is_encoder_decoder or kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(f"{name} is an encoder-decoder model; only decoders are supported.")
    others = any(getattr(config, other, None) is not None for other in MODALITIES)
    if others or config.get_text_config() is not config or "ForConditionalGeneration" in name:
        raise ModelError(f"{name} is a multimodal model; only text models are supported.")
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(f"{name} ({kind}) is not a causal language model that is supported.")
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    if config.architectures and not (name == known or name.endswith(CAUSAL_SUFFIXES)):
        raise ModelError(f"{name} is not a causal language model ({kind} has {known} for that).")


def _longest(config: PreTrainedConfig, name: str, max_model_len: int | None) -> int:
    trained = getattr(config, "max_position_embeddings", None)
    if trained is not None and trained < 1:  # some configs say -1 for "any"
        trained = None
    if max_model_len is None:
        if trained is None:
            raise ConfigError(f"{name} does not say how long its context is: set --max-model-len.")
        return int(trained)
    if trained is not None and max_model_len > trained:
        raise ConfigError(
            f"--max-model-len {max_model_len} is more than the {trained} tokens that {name} "
            "was made for."
        )
    return max_model_len


def _check_window(config: PreTrainedConfig, name: str, length: int) -> None:
    layers = getattr(config, "layer_types", None)
    windows = []
    if getattr(config, "use_sliding_window", True) and (
        layers is None or "sliding_attention" in layers
    ):
        windows.append(getattr(config, "sliding_window", None))
    if layers is None or "chunked_attention" in layers:
        windows.append(getattr(config, "attention_chunk_size", None))
    for window in windows:
        if window is not None:
            check_window(name, int(window), length)


def _check_positions(config: PreTrainedConfig, name: str, length: int) -> None:
    """Positions must mean the same in every step, however long its texts are."""
    limits = []
    for rope in _rope_parameters(config):
        kind = rope.get("rope_type", "default")
        original = rope.get("original_max_position_embeddings")
        if "dynamic" in kind or kind == "longrope":
            limits.append((original or config.max_position_embeddings, f"{kind} embeddings"))
    if getattr(config, "attn_temperature_tuning", False):
        # transformers counts these positions from its own cache, which stays empty here.
        limits.append((int(config.floor_scale) - 1, "attention temperature tuning"))
    for limit, what in limits:
        if length > limit:
            raise ModelError(
                f"{name} uses {what}, which beyond {limit} tokens change with the length of the "
                f"text: serve it with --max-model-len {limit} or less (now {length})."
            )


def check_window(name: str, window: int, length: int) -> None:
    """Refuse a sliding window of ``window`` tokens that contexts of ``length`` would outgrow.

    Raises:
        ModelError: the window is shorter.
    """
    if window < length:
        raise ModelError(
            f"{name} uses a sliding window of {window} tokens, which is not supported: serve it "
            f"with --max-model-len {window} or less (now {length})."
        )


def _rope_parameters(config: PreTrainedConfig) -> Iterator[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    if any(isinstance(value, dict) for value in parameters.values()):  # one set a layer type
        yield from (value for value in parameters.values() if isinstance(value, dict))
    else:
        yield parameters
