"""Paged attention in plain torch and fp32: slow, obviously right, the judge of every other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from radixserve.attention.arrays import PagedBatch
from radixserve.kernels.kv_append import append_fp8


@dataclass(slots=True)
class _Group:
    """B rows with equally many new tokens (Q) and about equally long contexts (padded to L)."""

    tokens: torch.Tensor
    """int64 [B, Q]: which tokens of the step."""
    pages: torch.Tensor
    """int64 [B, L / page_size]; rows with fewer pages are padded with the scratch page."""
    used: torch.Tensor
    """bool [B, L]: slots that hold a token of the row."""
    visible: torch.Tensor
    """bool [B, 1, 1, Q, L]: slots that each token may look at."""


class ReferenceAttention:
    """Attention over ``kv``, [layers, pages, 2, page_size, kv_heads, head_dim].

    Slots beyond a row's context are never read as numbers: they may hold anything, NaN included.
    With ``scales``, a pair for each layer, ``kv`` is float8_e4m3fn: keys are kept divided by the
    first, values by the second.
    """

    def __init__(self, kv: torch.Tensor, scales: Sequence[tuple[float, float]] | None = None):
        self.kv = kv
        self._scales = scales
        self._append_pages = self._append_offsets = torch.empty(0, dtype=torch.int64)
        self._groups: list[_Group] = []

    def begin(self, batch: PagedBatch) -> None:
        """Gather rows into groups. Padding at most doubles the KV that is read."""
        device = self.kv.device
        self._append_pages = batch.append_pages.to(device)
        self._append_offsets = batch.append_offsets.to(device)
        counts = batch.qo_indptr.diff().tolist()
        pages = batch.kv_indptr.diff().tolist()
        alike: dict[tuple[int, int], list[int]] = {}
        for row, (count, held) in enumerate(zip(counts, pages, strict=True)):
            alike.setdefault((count, held.bit_length()), []).append(row)
        self._groups = [_group(batch, rows, count, device) for (count, _), rows in alike.items()]

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write the new tokens' KV, [T, kv_heads, head_dim] each, into their slots."""
        pages, offsets = self._append_pages, self._append_offsets
        if self._scales is None:
            self.kv[layer, pages, 0, offsets] = key
            self.kv[layer, pages, 1, offsets] = value
            return
        first, second = self._scales[layer]
        append_fp8(self.kv[layer], key, value, pages, offsets, key_scale=first, value_scale=second)

    def run(
        self, layer: int, query: torch.Tensor, *, scale: float, soft_cap: float | None = None
    ) -> torch.Tensor:
        """See ``AttentionBackend.run``. Softmax and products are in fp32."""
        output = torch.empty_like(query)
        for group in self._groups:
            output[group.tokens] = self._attend(layer, query[group.tokens], group, scale, soft_cap)
        return output

    def _attend(
        self,
        layer: int,
        query: torch.Tensor,
        group: _Group,
        scale: float,
        soft_cap: float | None,
    ) -> torch.Tensor:
        rows, count, heads, head_dim = query.shape
        kv_heads = self.kv.shape[-2]
        gathered = self.kv[layer, group.pages].transpose(1, 2).flatten(2, 3).float()
        # A masked probability is 0, but 0 times the NaN of a slot never written is still NaN.
        gathered.masked_fill_(~group.used[:, None, :, None, None], 0.0)
        if self._scales is not None:
            gathered *= gathered.new_tensor(self._scales[layer]).view(2, 1, 1, 1)
        key, value = gathered.permute(1, 0, 3, 2, 4)  # each [B, kv_heads, L, head_dim]
        sharers = heads // kv_heads
        grouped = query.float().view(rows, count, kv_heads, sharers, head_dim)
        grouped = grouped.permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, kv_heads, sharers * Q, dim]
        scores = (grouped @ key.transpose(-1, -2) * scale).unflatten(2, (sharers, count))
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        weights = scores.masked_fill(~group.visible, float("-inf")).softmax(-1)
        attended = (weights.flatten(2, 3) @ value).unflatten(2, (sharers, count))
        output: torch.Tensor = attended.permute(0, 3, 1, 2, 4).reshape(query.shape)
        return output.to(query.dtype)


def _group(batch: PagedBatch, rows: list[int], count: int, device: torch.device) -> _Group:
    chosen = torch.tensor(rows)
    first, held = batch.kv_indptr[chosen].long(), batch.kv_indptr.diff()[chosen].long()
    column = torch.arange(int(held.max()))
    exists = column < held[:, None]
    pages = batch.kv_indices[torch.where(exists, first[:, None] + column, 0)].long()
    context = (held - 1) * batch.page_size + batch.last_page_len[chosen]
    tokens = batch.qo_indptr[chosen].long()[:, None] + torch.arange(count)
    slot = torch.arange(len(column) * batch.page_size)
    visible = slot <= batch.positions[tokens][:, :, None]
    return _Group(
        tokens=tokens.to(device),
        pages=torch.where(exists, pages, 0).to(device),
        used=(slot < context[:, None]).to(device),
        visible=visible[:, None, None].to(device),
    )
