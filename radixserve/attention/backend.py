"""What a model's layers ask of attention, whichever kernels answer."""

from __future__ import annotations

from typing import Protocol

import torch

from radixserve.attention.arrays import PagedBatch


class AttentionBackend(Protocol):
    """Causal attention over KV pages; a step calls ``begin`` once, then each layer both others.

    A backend is made with the KV it reads and writes and decides what that memory looks like.
    """

    def begin(self, batch: PagedBatch) -> None:
        """Prepare what all layers of a step share."""

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write ``key`` and ``value``, [T, kv_heads, head_dim], of the step's new tokens."""

    def run(
        self, layer: int, query: torch.Tensor, *, scale: float, soft_cap: float | None = None
    ) -> torch.Tensor:
        """Attention of ``query``, [T, heads, head_dim], over the whole context of each row.

        A token sees its own row up to its own position (bottom-right aligned). Scores are scaled
        by ``scale``, then, with ``soft_cap``, bent to ``soft_cap * tanh(score / soft_cap)``.

        Returns:
            [T, heads, head_dim] in the query's dtype.
        """
