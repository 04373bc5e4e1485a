"""A memory of what was evicted, when and for whose sake: as much of it as there is room for."""

from __future__ import annotations

from array import array
from math import copysign

import msgspec
import xxhash

from radixserve.cache.clock import StepClock
from radixserve.cache.node import Node, Tokens
from radixserve.tokens import TOKEN_BYTES

FEWEST, MOST = 2**10, 2**18
"""Places, which take 16 bytes each."""


class Eviction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What happened to a block that was there once."""

    seconds: float
    """Since then."""
    own: bool
    """Whether it made room for its own tenant."""


class Ghosts:
    """Where paths were cut off, by a hash of the tenant, the depth and the tokens of the first
    block that is missing. What comes to the same place of the table later takes it.

    Whoever asks knows by other means that the path was there: of two that go through the same block
    at the same depth one is taken for the other.

    Args:
        pages: of the pool.
    """

    __slots__ = ("_clock", "_hashes", "_mask", "_times")

    def __init__(self, pages: int, clock: StepClock):
        self._clock = clock
        places = min(max(FEWEST, 1 << pages.bit_length()), MOST)
        self._mask = places - 1
        self._hashes = array("Q", bytes(8 * places))
        self._times = array("d", bytes(8 * places))
        """Below zero where it made room for others."""

    def note(self, leaf: Node, count: int, block: int, *, own: bool) -> None:
        """The last ``count`` pages of ``leaf``, with keys of ``block`` bytes each, are about to be
        evicted, to make room for its own tenant or not. O(block)."""
        at = max(0, len(leaf.pages) - count) * block
        depth = leaf.start + at // TOKEN_BYTES
        name = _name(leaf.account.tenant, depth, leaf.key[at : at + block])
        place = name & self._mask
        self._hashes[place] = name
        self._times[place] = copysign(self._clock.now, 1 if own else -1)

    def find(self, tenant: str, depth: int, block: Tokens) -> Eviction | None:
        """When the block of ``tenant`` at ``depth`` tokens was evicted, if it was. O(block)."""
        name = _name(tenant, depth, block)
        place = name & self._mask
        if self._hashes[place] != name:
            return None
        time = self._times[place]
        return Eviction(max(0.0, self._clock.now - abs(time)), copysign(1, time) > 0)


def _name(tenant: str, depth: int, block: Tokens) -> int:
    return xxhash.xxh3_64_intdigest(tenant.encode() + block, seed=depth)
