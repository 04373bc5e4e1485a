"""What a model's files say about it, before its weights are read."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoConfig, PreTrainedConfig

from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, InvalidRequestError, ModelError, first_line
from radixserve.model.compatibility import check_config
from radixserve.model.facts import driver, gpu_facts
from radixserve.model.startup import why_no_gpu
from radixserve.scheduling.sampling import SamplingParams

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
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
    tokenizer: Path | None = None
    """A directory, as in ``ModelFiles``."""


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
        sampling_defaults=_sampling_defaults(generation),
    )


def pick_device(wanted: str) -> torch.device:
    """The device to compute on; auto is a GPU when there is one.

    Raises:
        ConfigError: a GPU is asked for and there is none.
    """
    has_gpu = torch.cuda.is_available()
    if wanted == "cuda" and not has_gpu:
        raise ConfigError(
            f"device is 'cuda', but torch sees no GPU. {why_no_gpu(gpu_facts())}. "
            "radixserve doctor shows all; --device cpu does without."
        )
    if wanted == "auto" and not has_gpu and driver() is not None:
        log.warning(
            "the CPU computes, although there is a driver of NVIDIA's: torch sees no GPU. %s",
            why_no_gpu(gpu_facts()),
        )
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
            f"{file}: the architecture {kind!r} cannot be read: {first_line(error)}"
        ) from error


def _generation_config(path: Path) -> dict[str, Any]:
    file = path / "generation_config.json"
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ModelError(f"{file} is not a JSON object: {error}") from error


def _sampling_defaults(generation: dict[str, Any]) -> dict[str, float | int]:
    """What the model's makers recommend, as requests can have it: 50.0 of a whole number is 50."""
    defaults: dict[str, float | int] = {}
    for key in DEFAULTS:
        if generation.get(key) is None:
            continue
        try:
            found = msgspec.convert({key: generation[key]}, SamplingParams, strict=False)
        except (msgspec.ValidationError, InvalidRequestError) as error:
            log.warning("generation_config.json: %s is not used: %s", key, error)
        else:
            defaults[key] = getattr(found, key)
    return defaults


def _ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)
