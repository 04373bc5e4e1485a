"""A causal language model as the step loop sees it: arrays in, logits of the sampled rows out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from radixserve.attention.arrays import PagedBatch
from radixserve.attention.backend import AttentionBackend
from radixserve.model.transformers_attention import LayerAttention, PagedStep

if TYPE_CHECKING:
    from radixserve.model.compiled import OpaqueAttention


class Decoder:
    """Runs ``model``, a causal model of transformers whose attention is ours."""

    def __init__(self, model: torch.nn.Module, device: torch.device):
        self.model = model
        self.device = device
        self._opaque: OpaqueAttention | None = None

    def compile(self) -> None:
        """Have ``model`` compiled at its next steps, all but its attention and its logits.

        Raises:
            ConfigError: there is nothing to compile with.
        """
        from radixserve.model.compiled import OpaqueAttention, compile_body

        compile_body(self.model)
        self._opaque = OpaqueAttention()

    @torch.inference_mode()
    def logits(self, batch: PagedBatch, backend: AttentionBackend) -> torch.Tensor:
        """Logits, [S, vocabulary], of ``batch.sample_rows``; the KV of all tokens is appended."""
        backend.begin(batch)
        return self.forward(batch.token_ids, batch.positions, batch.sample_rows, PagedStep(backend))

    @torch.inference_mode()
    def states(self, batch: PagedBatch, backend: AttentionBackend) -> torch.Tensor:
        """As ``logits``, but the hidden states that these are made of, fp32 [S, hidden]."""
        backend.begin(batch)
        body: Any = self.model.base_model
        output = body(
            input_ids=batch.token_ids[None].to(self.device),
            position_ids=batch.positions[None].to(self.device),
            use_cache=False,
            paged=self._paged(PagedStep(backend)),
        )
        states: torch.Tensor = output.last_hidden_state[0]
        return states[batch.sample_rows.to(self.device)].float()

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        keep: torch.Tensor,
        paged: LayerAttention,
    ) -> torch.Tensor:
        """Logits, [len(keep), vocabulary], of the tokens at ``keep``; all int64, on the CPU."""
        output = self.model(
            input_ids=token_ids[None].to(self.device),
            position_ids=positions[None].to(self.device),
            logits_to_keep=keep.to(self.device),
            use_cache=False,
            paged=self._paged(paged),
        )
        logits: torch.Tensor = output.logits
        return logits[0]

    def _paged(self, paged: LayerAttention) -> object:
        return paged if self._opaque is None else self._opaque.around(paged)
