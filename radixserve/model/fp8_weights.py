"""Weights that a checkpoint keeps in FP8, brought back to plain numbers as they are read.

A weight of e4m3 lies beside a scale that it is multiplied with: one for all of it, one for each of
its rows, or one for each block. So write compressed-tensors and llm-compressor (``weight_scale``),
AutoFP8 and ModelOpt (the same), and DeepSeek (``weight_scale_inv``, in blocks, which is no inverse
of what is multiplied with). Scales of activations (``input_scale``) are for products in FP8, which
are not computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from radixserve.errors import ModelError

SCALES = ("weight_scale", "weight_scale_inv")
UNUSED = "input_scale"
STRATEGIES = {"tensor", "channel", "block"}

Block = tuple[int, int] | None
"""Rows and columns of a weight that one scale is for, where it is for blocks."""


def readable(config: PreTrainedConfig) -> bool:
    """Whether the config says that weights are in FP8, of a kind that is read here."""
    told = _told(config)
    method = told.get("quant_method")
    if method == "compressed-tensors":
        groups = [
            group.get("weights") or {} for group in (told.get("config_groups") or {}).values()
        ]
        return bool(groups) and all(
            (group.get("type"), group.get("num_bits")) == ("float", 8)
            and group.get("strategy") in STRATEGIES
            for group in groups
        )
    if method == "modelopt":
        return told.get("quant_algo") == "FP8"
    return method == "fp8" and told.get("fmt", "e4m3") == "e4m3"


def dequantized(config: PreTrainedConfig, stored: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What ``stored``, slices of safetensors by name, stand for: weights without their scales.

    Those in FP8 are fp32 when they are read, of which only what is asked for is.

    Raises:
        ModelError: one in FP8 has no scale, or a scale that is for no rows or blocks of it.
    """
    found = {}
    for name, weight in stored.items():
        module, _, last = name.rpartition(".")
        if last in (*SCALES, UNUSED):
            continue
        if not weight.get_dtype().startswith("F8_"):
            found[name] = weight
            continue
        scales = [stored[f"{module}.{each}"] for each in SCALES if f"{module}.{each}" in stored]
        if last != "weight" or weight.get_dtype() != "F8_E4M3" or not scales:
            raise ModelError(f"{path}: {name}, in {weight.get_dtype()}, has no scale beside it.")
        try:
            found[name] = _Weight(
                weight, *_grid(weight.get_shape(), scales[0][...], _block(config))
            )
        except ValueError as error:
            raise ModelError(f"{path}: the scale of {name} {error}") from error
    return found


@dataclass(frozen=True, slots=True)
class _Weight:
    """A matrix in FP8 that is indexed by a slice of its rows, and maybe one of its columns."""

    stored: Any
    scales: torch.Tensor
    """fp32, [1 or rows, 1 or columns] of blocks."""
    block: tuple[int, int]

    def __getitem__(self, index: slice | tuple[slice, slice]) -> torch.Tensor:
        slices = index if isinstance(index, tuple) else (index, slice(None))
        scales = self.scales
        for dim, (part, size) in enumerate(zip(slices, self.stored.get_shape(), strict=True)):
            if scales.shape[dim] > 1:  # else one is for all
                scales = scales.index_select(dim, torch.arange(size)[part] // self.block[dim])
        read: torch.Tensor = self.stored[slices].float()
        return read.mul_(scales)


def _grid(
    shape: list[int], scale: torch.Tensor, block: Block
) -> tuple[torch.Tensor, tuple[int, int]]:
    """The scales as [1 or rows, 1 or columns] of blocks, and the size of a block."""
    scales = scale.float()
    if scales.numel() == 1:
        scales = scales.reshape(1, 1)
    elif scales.dim() == 1:
        scales = scales[:, None]
    sizes = [
        size if count == 1 else 1 if count == size else told
        for count, size, told in zip(scales.shape, shape, block or (0, 0), strict=True)
    ]
    for count, size, each in zip(scales.shape, shape, sizes, strict=True):
        if each == 0 or -(-size // each) != count:
            raise ValueError(f"is {list(scale.shape)}, which does not go with {list(shape)}.")
    return scales, (sizes[0], sizes[1])


def _block(config: PreTrainedConfig) -> Block:
    told = _told(config)
    sizes = told.get("weight_block_size")
    for group in (told.get("config_groups") or {}).values():
        sizes = sizes or (group.get("weights") or {}).get("block_structure")
    if isinstance(sizes, str):  # older checkpoints write 128x128
        sizes = [int(each) for each in sizes.split("x")]
    return None if sizes is None else (sizes[0], sizes[1])


def _told(config: PreTrainedConfig) -> dict[str, Any]:
    told = getattr(config, "quantization_config", None)
    return told if isinstance(told, dict) else {}
