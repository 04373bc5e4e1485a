"""What a request would find in the cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peek:
    """What ``acquire`` would find, in tokens."""

    blocks: int
    """Tokens in whole blocks, reused in place."""
    copied: int
    """Tokens of the next block that could be copied."""

    @property
    def tokens(self) -> int:
        return self.blocks + self.copied
