"""What FlashInfer's kernels read, and what they compute of it, in plain torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tests.attention.fake_device import RaceError

SMS = 132
"""Of an H200."""


@dataclass
class Planned:
    tokens: int
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    last_page_len: torch.Tensor
    indices: torch.Tensor
    indices_then: torch.Tensor
    heads: tuple[int, int, int, int]
    """Of queries, of KV, their elements; page size."""
    causal: bool
    scale: float
    soft_cap: float
    dtypes: tuple[torch.dtype, torch.dtype]


@dataclass
class Fixed:
    """What a wrapper that was made for graphs reads when it runs."""

    number: int
    """Of the wrapper."""
    indptr: torch.Tensor
    indices: torch.Tensor
    last_page_len: torch.Tensor
    plan: torch.Tensor | None = None
    """int32: the number of the wrapper that was planned last, and its indptr."""

    def arrays(self) -> tuple[torch.Tensor, ...]:
        """For ``attend``, as they are when the device gets there."""
        assert self.plan is not None
        rows = len(self.last_page_len)
        if not torch.equal(self.plan[1 : rows + 2], self.indptr) or self.plan[0] != self.number:
            raise RaceError("it runs by the plan of another step")
        read = self.indices[: int(self.indptr[-1])]
        return torch.arange(rows + 1), self.indptr, read, self.last_page_len


def attend(
    query: torch.Tensor,
    kv: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    causal: bool,
    scale: float,
    soft_cap: float,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """Attention, row by row in fp32, and its log-sum-exp to base 2."""
    qo, pages = qo_indptr.tolist(), kv_indptr.tolist()
    for row, last in enumerate(last_page_len.tolist()):
        mine = slice(qo[row], qo[row + 1])
        chosen = kv[indices[pages[row] : pages[row + 1]].long()]
        seen = (len(chosen) - 1) * kv.shape[2] + last
        key, value = (chosen[:, part].flatten(0, 1)[:seen].float() for part in (0, 1))
        sharers = query.shape[1] // kv.shape[3]
        key, value = (each.repeat_interleave(sharers, 1) for each in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[mine].float(), key) * scale
        if soft_cap > 0:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        if causal:
            count = mine.stop - mine.start
            last_seen = torch.arange(count)[:, None] + seen - count
            scores = scores.masked_fill(torch.arange(seen) > last_seen, -math.inf)
        out[mine] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).to(out.dtype)
        lse[mine] = (scores.logsumexp(-1) / math.log(2)).T


def tiles_bytes(rows: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """What a graph's plan of ``rows`` decoding rows on tensor cores takes of the workspace."""
    group = heads // kv_heads
    tile = 16 if group <= 16 else 64 if group <= 64 or head_dim >= 256 else 128
    tiles = max(2 * SMS // kv_heads, -(-rows * group // tile) + rows - 1)
    return heads * tiles * tile * (head_dim + 1) * 4


def merge(
    v: torch.Tensor,
    s: torch.Tensor,
    v_other: torch.Tensor,
    s_other: torch.Tensor,
    mask: torch.Tensor | None,
) -> None:
    """Log-sum-exp to base 2, in place; where ``mask`` is 0 the other is not even read."""
    chosen = slice(None) if mask is None else mask.bool()
    most = torch.maximum(s[chosen], s_other[chosen])
    mine, others = torch.exp2(s[chosen] - most), torch.exp2(s_other[chosen] - most)
    total = mine + others
    sums = v[chosen].float() * mine[..., None] + v_other[chosen].float() * others[..., None]
    v[chosen] = (sums / total[..., None]).to(v.dtype)
    s[chosen] = torch.log2(total) + most
