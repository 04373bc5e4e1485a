"""From files to a model in memory that computes attention over our pages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, ModelError
from radixserve.model.compatibility import check_config
from radixserve.model.decoder import Decoder
from radixserve.model.transformers_attention import NAME

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BUFFERS = ("inv_freq", "attn.bias", "attn.masked_bias")
"""Ends of names that old checkpoints hold as weights and models compute themselves."""
DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model's files are, all of them on this machine."""

    model: Path
    """A directory with config.json and *.safetensors; with dummy weights, maybe a config file."""
    tokenizer: Path
    """A directory."""
    name: str
    """What clients call it."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a model's files say about it, before its weights are read."""

    path: Path
    config: PreTrainedConfig
    device: torch.device
    dtype: torch.dtype
    dummy: bool
    seed: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    sampling_defaults: dict[str, float | int]


def describe(path: Path, config: EngineConfig) -> Description:
    """Read what there is to know of the model at ``path``, a directory (or, with dummy weights, a
    config file).

    Raises:
        ModelError: the files are missing, damaged, or of a model that cannot be served.
        ConfigError: ``config`` asks for what the model or the machine does not have.
    """
    device = pick_device(config.device)
    dtype = pick_dtype(config.dtype, device)
    model_config = read_config(path)
    dummy = config.load_format == "dummy"
    if not model_config.architectures and not dummy:
        raise ModelError(f"{path}: config.json names no architecture ('architectures').")
    max_model_len = check_config(model_config, config.max_model_len)
    generation = _generation_config(path)
    return Description(
        path=path,
        config=model_config,
        device=device,
        dtype=dtype,
        dummy=dummy,
        seed=config.seed,
        max_model_len=max_model_len,
        eos_token_ids=_ids(model_config.eos_token_id) | _ids(generation.get("eos_token_id")),
        sampling_defaults={
            key: generation[key] for key in DEFAULTS if generation.get(key) is not None
        },
    )


def load(described: Description) -> Decoder:
    """The model, run by transformers.

    Raises:
        ModelError: its weights are missing or damaged.
    """
    model = weights(described)
    return Decoder(model.to(described.device), described.device)


def weights(described: Description) -> PreTrainedModel:
    """The model with its weights, on the CPU.

    Raises:
        ModelError: they are missing or damaged.
    """
    config, dtype = described.config, described.dtype
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if described.dummy:
        model = _dummy(architecture, config, dtype, described.seed)
    else:
        model = _from_safetensors(architecture, config, described.path, dtype)
    return model.requires_grad_(False).eval()


def pick_device(wanted: str) -> torch.device:
    """The device to compute on; auto is a GPU when there is one.

    Raises:
        ConfigError: a GPU is asked for and there is none.
    """
    has_gpu = torch.cuda.is_available()
    if wanted == "cuda" and not has_gpu:
        raise ConfigError("device is 'cuda', but torch sees no GPU.")
    return torch.device("cuda" if has_gpu and wanted != "cpu" else "cpu")


def pick_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """The dtype of weights and KV; auto is bfloat16 where the hardware multiplies it."""
    if wanted != "auto":
        return DTYPES[wanted]
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported()
    else:
        try:
            flags = set(Path("/proc/cpuinfo").read_text().split())
        except OSError:
            flags = set()
        native = not flags.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})
    return torch.bfloat16 if native else torch.float32


def read_config(path: Path) -> PreTrainedConfig:
    """The config at ``path``, a directory that holds config.json or such a file itself.

    Raises:
        ModelError: there is none, or it cannot be understood.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise ModelError(f"{path}: there is no config.json.")
    try:
        kind = json.loads(file.read_bytes()).get("model_type")
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{file} is not a JSON object: {error}") from error
    if not kind:
        raise ModelError(f"{file} names no architecture ('model_type').")
    try:
        return AutoConfig.from_pretrained(str(file))
    except Exception as error:  # transformers raises what it likes; the first line says enough
        raise ModelError(
            f"{file}: the architecture {kind!r} cannot be read: {_line(error)}"
        ) from error


def _from_safetensors(
    architecture: type[PreTrainedModel], config: PreTrainedConfig, path: Path, dtype: torch.dtype
) -> PreTrainedModel:
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"{path} holds no weights: *.safetensors files are needed.")
    try:
        model, info = architecture.from_pretrained(
            str(path),
            config=config,
            dtype=dtype,
            attn_implementation=NAME,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise ModelError(f"{path}: the weights cannot be loaded: {_line(error)}") from error
    missing = sorted(info["missing_keys"])
    odd = sorted(key for key in info["unexpected_keys"] if not key.endswith(BUFFERS))
    for what, keys in (("lack", missing), ("hold, beyond what the model has,", odd)):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise ModelError(
                f"{path}: the weights {what} {keys[0]}{more}: not a {architecture.__name__}."
            )
    return model


def _dummy(
    architecture: type[PreTrainedModel], config: PreTrainedConfig, dtype: torch.dtype, seed: int
) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model: PreTrainedModel = architecture.from_pretrained(
                None, config=config, state_dict={}, dtype=dtype, attn_implementation=NAME
            )
        except Exception as error:
            raise ModelError(
                f"{architecture.__name__} cannot be made from its config: {_line(error)}"
            ) from error
    return model


def _generation_config(path: Path) -> dict[str, Any]:
    file = path / "generation_config.json"
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ModelError(f"{file} is not a JSON object: {error}") from error


def _ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
