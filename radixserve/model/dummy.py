"""Random weights for a geometry, each drawn on the GPU when it is read: none is on the host."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

import torch
from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from radixserve.model.family import Stored


class DummyTensors(Mapping[str, Stored]):
    """The weights of a model of ``config`` by name, on ``device``: norms are 1, biases 0, all else
    N(0, ``initializer_range``), as transformers begins a training.

    A weight follows from its name and ``seed`` alone, so that several ranks read the same model.
    They are not the numbers that transformers draws on the host, which takes a minute for 8
    billion. Each read draws anew: O(elements).
    """

    def __init__(
        self, config: PreTrainedConfig, dtype: torch.dtype, seed: int, device: torch.device
    ):
        with torch.device("meta"):
            state = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).state_dict()
        if config.tie_word_embeddings:
            state.pop("lm_head.weight", None)
        self._shapes = {name: tensor.shape for name, tensor in state.items()}
        self._dtype, self._seed, self._device = dtype, seed, device
        self._spread = float(config.initializer_range)

    def __getitem__(self, name: str) -> torch.Tensor:
        made = torch.empty(self._shapes[name], dtype=self._dtype, device=self._device)
        if name.endswith(".bias"):
            return made.zero_()
        if made.dim() == 1:
            return made.fill_(1.0)
        generator = torch.Generator(self._device).manual_seed(
            self._seed + zlib.crc32(name.encode())
        )
        return made.normal_(0.0, self._spread, generator=generator)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)
