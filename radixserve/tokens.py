"""Tokens as bytes: int32, packed big-endian, so that byte order is token order."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

TOKEN_BYTES = 4


def pack(token_ids: Iterable[int]) -> bytes:
    """Token ids as int32 big-endian bytes.

    Raises:
        OverflowError: an id does not fit into 32 signed bits.
    """
    packed = array("i", token_ids)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


def unpack(tokens: bytes | bytearray | memoryview) -> list[int]:
    """The token ids of packed ``tokens``."""
    unpacked = array("i")
    unpacked.frombytes(tokens)
    if sys.byteorder == "little":
        unpacked.byteswap()
    return unpacked.tolist()


def count(tokens: bytes | bytearray | memoryview) -> int:
    """How many tokens ``tokens`` holds."""
    return len(tokens) // TOKEN_BYTES
