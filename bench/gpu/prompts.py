"""Prompts of random tokens: nothing is shared but what a case says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bench.gpu.sizes import Sizes

SPECIAL = 100
"""Tokens from 0 that prompts leave out, where the vocabulary is large enough."""


class Tokens:
    """Random tokens: the same in every run for one ``name``, and others at each call."""

    def __init__(self, vocabulary: int, name: str):
        self._low = SPECIAL if vocabulary > 2 * SPECIAL else 0
        self._high = vocabulary
        self._random = np.random.default_rng(list(name.encode()))

    def some(self, count: int) -> bytes:
        """``count`` tokens, int32 packed big-endian."""
        drawn = self._random.integers(self._low, self._high, count, dtype=np.int32)
        return drawn.astype(">i4").tobytes()

    def sharing(self, rows: int, shared: int, own: int) -> Iterator[bytes]:
        """``rows`` prompts with ``shared`` tokens in common."""
        trunk = self.some(shared)
        for _ in range(rows):
            yield trunk + self.some(own)


def load(sizes: Sizes, vocabulary: int, repeat: int) -> list[bytes]:
    """The prompts of the load for throughput, the same for all who are compared.

    As in SGLang's generated-shared-prefix workload: each group has a system prompt of its own.
    Groups follow each other; nothing is shared with another ``repeat``.
    """
    tokens = Tokens(vocabulary, f"load {repeat}")
    share = sizes.rows // sizes.groups
    return [
        prompt
        for _ in range(sizes.groups)
        for prompt in tokens.sharing(share, sizes.system, sizes.question)
    ]
