"""Rotary embedding: how far each pair of a head turns at each position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from radixserve.model.family import head_size


def rotations(config: PreTrainedConfig, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of all positions, fp32 [length, head_dim / 2] each."""
    turns, factor = frequencies(config)
    angles = torch.arange(length)[:, None].float() * turns
    return angles.cos() * factor, angles.sin() * factor


def frequencies(config: PreTrainedConfig) -> tuple[torch.Tensor, float]:
    """Of each pair of a head, fp32 [head_dim / 2]; and what cosines and sines are multiplied by.

    Su et al., "RoFormer" (2021), for the default; transformers has the variants that scale it.
    """
    rope: dict[str, Any] = config.rope_parameters
    if rope["rope_type"] != "default":
        scaled: Callable[..., tuple[torch.Tensor, float]] = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
        return scaled(config)
    size = head_size(config)
    powers = torch.arange(0, size, 2, dtype=torch.float) / size
    return 1.0 / rope["rope_theta"] ** powers, 1.0
