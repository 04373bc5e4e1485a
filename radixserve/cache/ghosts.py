"""A memory of what was evicted, when and for whose sake: as much of it as there is room for."""

from __future__ import annotations

from array import array
from math import copysign

import msgspec
import xxhash

from radixserve.cache.clock import StepClock
from radixserve.cache.node import Node, Tokens
from radixserve.tokens import TOKEN_BYTES

FEWEST, MOST = 2**10, 2**19
"""Places, which take 16 bytes each. An eviction takes two."""


class Eviction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What happened to a block that was there once."""

    seconds: float
    """Since then."""
    own: bool
    """Whether it made room for its own tenant."""


class Ghosts:
    """Where paths were cut off, by a hash of the tenant, the depth and the tokens of the first
    block that is missing, or, where that or what is asked for is a part of one, of its first token.
    What comes to the same place of the table later takes it.

    Whoever asks knows by other means that the path was there: of two that go through the same block
    at the same depth one is taken for the other.

    Args:
        pages: of the pool.
    """

    __slots__ = ("_clock", "_hashes", "_mask", "_times")

    def __init__(self, pages: int, clock: StepClock):
        self._clock = clock
        places = min(max(FEWEST, 2 << pages.bit_length()), MOST)
        self._mask = places - 1
        self._hashes = array("Q", bytes(8 * places))
        self._times = array("d", bytes(8 * places))
        """Below zero where it made room for others."""

    def note(self, leaf: Node, count: int, block: int, *, own: bool) -> None:
        """The last ``count`` pages of ``leaf``, with keys of ``block`` bytes each, are about to be
        evicted, to make room for its own tenant or not. O(block)."""
        at = max(0, len(leaf.pages) - count) * block
        depth = leaf.start + at // TOKEN_BYTES
        tenant, gone = leaf.account.tenant, leaf.key[at : at + block]
        time = copysign(self._clock.now, 1 if own else -1)
        whole = len(gone) == block
        if whole:
            self._put(_name(tenant, depth, gone), time)
        self._put(_part(tenant, depth, gone, of_whole=whole), time)

    def find(self, tenant: str, depth: int, tokens: Tokens, block: int) -> Eviction | None:
        """When the block of ``tenant`` at ``depth`` tokens was evicted, if it was. ``tokens`` begin
        with that, as far as they go, which has ``block`` bytes. O(block)."""
        if len(tokens) >= block:
            exact = _name(tenant, depth, tokens[:block])
        else:
            exact = _part(tenant, depth, tokens, of_whole=True)
        for name in (exact, _part(tenant, depth, tokens, of_whole=False)):
            place = name & self._mask
            if self._hashes[place] == name:
                time = self._times[place]
                return Eviction(max(0.0, self._clock.now - abs(time)), copysign(1, time) > 0)
        return None

    def _put(self, name: int, time: float) -> None:
        place = name & self._mask
        self._hashes[place] = name
        self._times[place] = time


def _name(tenant: str, depth: int, block: Tokens) -> int:
    return xxhash.xxh3_64_intdigest(tenant.encode() + block, seed=depth)


def _part(tenant: str, depth: int, block: Tokens, *, of_whole: bool) -> int:
    """The name of a block of which not all tokens are known, by the first one."""
    kind = b" whole" if of_whole else b" part"
    return xxhash.xxh3_64_intdigest(tenant.encode() + block[:TOKEN_BYTES] + kind, seed=depth)
