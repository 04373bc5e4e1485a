"""What models of Llama's family differ in, and ranks of one that are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from radixserve.model.parallel import Parallel
from tests.model import tiny

CPU = torch.device("cpu")
SMALL = tiny.small(heads=4, inner=96)
FORMS = tiny.forms(SMALL) | {"mistral": tiny.FAMILIES["mistral"]()}
PROMPT = [(29 * i * i + 3 * i + 5) % 250 for i in range(70)]


@dataclass(frozen=True)
class Thread(Parallel):
    """A rank that is a thread of this process."""

    board: Any = None
    barrier: Any = None

    def exchanged(self, mine: torch.Tensor) -> list[torch.Tensor]:
        self.board[self.rank] = mine.clone()
        self.barrier.wait()
        everyone = list(self.board)
        self.barrier.wait()
        return everyone

    def sum(self, partial: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.exchanged(partial)).sum(0)

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.exchanged(part), -1)


def in_ranks(size: int, compute: Callable[[Any], Any], rank: type[Thread] = Thread) -> list[Any]:
    """What each of ``size`` ranks, a ``rank``, computes."""
    board, barrier = [None] * size, threading.Barrier(size, timeout=60)
    with ThreadPoolExecutor(size) as pool:
        return list(
            pool.map(compute, [rank(index, size, CPU, board, barrier) for index in range(size)])
        )
