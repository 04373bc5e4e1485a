"""Rows to sample from, in every setting."""

from __future__ import annotations

from array import array
from typing import Any

import torch

from radixserve.scheduling.plan import Row
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack

VOCABULARY = 50
EOS = {7}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0},
    "cold": {"temperature": 0.3},
    "next to greedy": {"temperature": 5e-324},
    "next to nothing": {"min_p": 5e-324, "top_p": 5e-324},
    "all of min_p": {"min_p": 1.0, "temperature": 2.0},
    "top_k": {"top_k": 5},
    "top_k of all": {"top_k": 999},
    "top_p": {"top_p": 0.7},
    "a tiny top_p": {"top_p": 1e-9},
    "min_p": {"min_p": 0.2},
    "all filters": {"min_p": 0.01, "top_k": 9, "top_p": 0.8, "temperature": 1.3},
    "repetition": {"repetition_penalty": 1.7},
    "repetition rewarded": {"repetition_penalty": 0.6, "temperature": 0},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.1, "temperature": 0},
    "bias": {"logit_bias": {3: 5.0, 4: -100.0}},
    "a forbidden stop": {"min_tokens": 9, "stop_token_ids": (11, 12)},
    "a forbidden stop without eos": {"min_tokens": 9, "ignore_eos": True, "temperature": 0},
    "allowed": {"allowed_token_ids": (3, 4, 9, 7), "logit_bias": {3: 2.0, 5: 50.0}},
    "bad words": {
        "bad_words": tuple(
            pack(word) for word in [[3], [4], *([a, b] for a in range(40) for b in (8, 9))]
        ),
        "logit_bias": {3: 90.0, 8: 3.0, 9: 3.0},
    },
    "everything": {
        "min_p": 0.01, "top_k": 20, "top_p": 0.9, "temperature": 0.8, "repetition_penalty": 1.2,
        "presence_penalty": 0.3, "frequency_penalty": 0.2, "logit_bias": {5: 2.0}, "min_tokens": 6,
    },
}  # fmt: skip


def row(prompt: list[int] = [1, 2], output: list[int] = [], **params: Any) -> Row:  # noqa: B006
    sampling = SamplingParams(**{"seed": 0, **params})
    history = pack([*prompt, *output])
    return Row("r", history, 0, array("i"), sampling, history, len(prompt))


def logits_of(*seeds: int, scale: float = 2.0) -> torch.Tensor:
    return torch.stack(
        [
            torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * scale
            for seed in seeds
        ]
    )
