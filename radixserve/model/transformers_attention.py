"""The hook by which models of transformers compute attention through one of our backends."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from radixserve.attention.backend import AttentionBackend
from radixserve.errors import ModelError

NAME = "radixserve"


class LayerAttention(Protocol):
    """What one forward pass does for each layer; handed to ``model(...)`` as ``paged``."""

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        soft_cap: float | None,
        extras: dict[str, Any],
    ) -> torch.Tensor:
        """[T, heads, head_dim] from query, key and value of the same form.

        ``extras`` is all else that the model hands to its attention.
        """


class PagedStep:
    """Append, then attend, through ``backend``, whose ``begin`` has been called."""

    __slots__ = ("_backend",)

    def __init__(self, backend: AttentionBackend):
        self._backend = backend

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        soft_cap: float | None,
        extras: dict[str, Any],
    ) -> torch.Tensor:
        """See ``LayerAttention``. What ``extras`` may hold was settled at loading."""
        layer = module.layer_idx
        assert isinstance(layer, int)
        self._backend.append(layer, key, value)
        return self._backend.run(layer, query, scale=scale, soft_cap=soft_cap)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged: LayerAttention | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    **extras: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: q, k, v are [1, heads, T, head_dim] of this step alone."""
    if paged is None:
        raise ModelError(
            f"{type(module).__name__} is not told which pages to read: its model does not pass "
            "arguments on to attention, which is not supported."
        )
    output = paged(
        module,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        soft_cap=softcap,
        extras={"attention_mask": attention_mask, **extras},
    )
    return output.unsqueeze(0), None


AttentionInterface.register(NAME, _attention)
