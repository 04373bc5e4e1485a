"""Random trees of shared pages, and what attention over them gives."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import dataclass, field

import torch

from radixserve.attention import cpu
from radixserve.attention.arrays import paged_batch
from radixserve.attention.backend import AttentionBackend
from radixserve.attention.cpu import CpuAttention
from radixserve.attention.reference import ReferenceAttention
from radixserve.kernels.cpu.weights import PageForm
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.tokens import pack

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
LAYER = 1


@dataclass
class World:
    """Page rows that fork from each other, and what every slot in use holds."""

    page_size: int
    heads: int = 6
    kv_heads: int = 2
    dim: int = 64
    dtype: torch.dtype = torch.float32
    seed: int = 0
    rows: list[Row] = field(default_factory=list)
    used: int = 0

    @property
    def pool(self) -> int:
        """Pages, enough for some 5,000 tokens."""
        return 300 + 5000 // self.page_size

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.generator = torch.Generator().manual_seed(self.seed)
        self.ids = list(range(1, self.pool))
        self.chance.shuffle(self.ids)

    def pages(self, count: int) -> list[int]:
        taken = self.ids[self.used : self.used + count]
        self.used += count
        return taken

    def row(self, shared: list[int], own: int, new: int) -> None:
        """A row with ``own`` tokens behind its shared pages, the last ``new`` of them new."""
        end = len(shared) * self.page_size + own
        mine = shared + self.pages(-(-own // self.page_size))
        self.rows.append(Row("r", pack(range(new)), end - new, array("i", mine)))

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def empty(self) -> torch.Tensor:
        """A pool in which no slot is a number."""
        shape = (LAYER + 1, self.pool, 2, self.page_size, self.kv_heads, self.dim)
        return torch.full(shape, math.nan, dtype=self.dtype)

    def attend(
        self, backends: list[AttentionBackend], soft_cap: float | None = None
    ) -> list[torch.Tensor]:
        """Fill the slots of all older tokens, then run the step, through each backend."""
        filled: dict[int, int] = {}
        for row in self.rows:
            for at in range(0, row.start, self.page_size):
                page, count = row.pages[at // self.page_size], min(self.page_size, row.start - at)
                filled[page] = max(filled.get(page, 0), count)
        history = [Row("f", pack(range(n)), 0, array("i", [page])) for page, n in filled.items()]
        old, new = sum(filled.values()), sum(row.count for row in self.rows)
        kv_shape = (self.kv_heads, self.dim)
        past = [self.random(old, *kv_shape) for _ in range(2)]
        fresh = [self.random(new, *kv_shape) for _ in range(2)]
        query = self.random(new, self.heads, self.dim)
        outputs = []
        for backend in backends:
            if history:
                backend.begin(paged_batch(StepPlan(1, history), self.page_size))
                backend.append(LAYER, *past)
            backend.begin(paged_batch(StepPlan(2, self.rows), self.page_size))
            backend.append(LAYER, *fresh)
            outputs.append(
                backend.run(LAYER, query, scale=1 / math.sqrt(self.dim), soft_cap=soft_cap)
            )
        return outputs

    def form(self, code: str = "none") -> PageForm:
        return PageForm(self.page_size, self.kv_heads, self.dim, self.dtype, code)

    def backends(self, *, threads: int = 2, together: bool = True) -> list[AttentionBackend]:
        native = cpu.kernels()
        assert native is not None, "this test needs a C++ compiler"
        return [
            ReferenceAttention(self.empty()),
            CpuAttention(
                native, self.empty(), self.form(), self.heads, threads=threads, together=together
            ),
        ]

    def check(self, soft_cap: float | None = None, **how: bool) -> CpuAttention:
        backends = self.backends(**how)
        expected, actual = self.attend(backends, soft_cap)
        tolerance = TOLERANCE[self.dtype]
        torch.testing.assert_close(actual.float(), expected.float(), atol=tolerance, rtol=tolerance)
        native = backends[1]
        assert isinstance(native, CpuAttention)
        return native

    def tree(self, shared: list[int], depth: int) -> None:
        """Decoding rows at the ends of a random tree of pages."""
        shared = shared + self.pages(self.chance.randrange(0, 100) // self.page_size)
        for _ in range(self.chance.randrange(1, 4)):
            if depth and self.chance.random() < 0.7:
                self.tree(shared, depth - 1)
            else:
                self.row(shared, self.chance.randrange(1, 150), 1)
