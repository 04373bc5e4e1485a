"""What two requests say of the same, found with far less work than where they part: by hashes of
short runs, as in Manber, "Finding similar files in a large file system" (1994)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from radixserve.explain.walk import SECTIONS, Body

RUN = 24
"""Bytes: four words or so, which rarely stand in both by chance."""
LITTLE = 128
"""Bytes of a short text: two of them have something in common if half a run stands in both."""
HEAD, MOST = 512, 512
"""Hashes of a long text that are kept: all at its beginning, and so many of the rest, roughly."""
CHARACTERS, VALUES = 2**17, 20_000
"""What is read of a body: what stands behind them is not seen."""
LABELS = frozenset({"role", "type"})
"""Fields whose values are the same in all requests."""

Hashes = NDArray[np.uint32]

_FACTOR = 0x9E3779B1
_HASHES = 2**32
_BARE = bytes(each for each in range(128) if not chr(each).isalnum())
_UNSAID = re.compile(r"\W+")


def fingerprints(body: Body) -> list[int]:
    """Hashes of the runs of ``RUN`` bytes in what a body says. Of a long one those at
    its beginning are kept and small ones of the rest, so that what stands in two bodies is kept of
    both; of what is a hundredth of it, or less, maybe nothing. O(size), and bounded."""
    said = _said(body)
    hashes: Hashes = np.ndarray(max(0, len(said) - 3), np.uint32, said, strides=1)
    halves = _joined(_joined(hashes, 4), 4)
    hashes = _joined(halves, RUN // 2)
    if len(said) < LITTLE:
        hashes = np.concatenate((hashes, halves))
    elif len(hashes) > HEAD + MOST:
        rest = hashes[HEAD:]
        hashes = np.concatenate((hashes[:HEAD], rest[rest < _HASHES // len(rest) * MOST]))
    found: list[int] = hashes.tolist()
    return found


def _joined(hashes: Hashes, shift: int) -> Hashes:
    """Of each two runs that begin ``shift`` bytes apart, the hash of both. Modulo 2^32."""
    return hashes[:-shift] * np.uint32(_FACTOR + 2 * shift) + hashes[shift:]


def _said(body: Body) -> bytes:
    """Its letters and digits, however they are spaced, and whatever characters look the same."""
    said = "".join(_texts(body))[:CHARACTERS].encode(errors="ignore").translate(None, _BARE)
    if said.isascii():
        return said
    # Without marks, which would take hours to be put in order if there were a million in a row.
    letters = _UNSAID.sub("", said.decode())
    parts = unicodedata.normalize("NFKD", letters)
    return (letters if parts == letters else _UNSAID.sub("", parts)).encode()


def _texts(body: Body) -> Iterator[str]:
    """The texts in what a prompt is made of, in their order."""
    left = [body.get(name) for name in reversed(SECTIONS)]
    values = characters = 0
    while left and values < VALUES and characters < CHARACTERS:
        value = left.pop()
        values += 1
        if isinstance(value, str):
            characters += len(value)
            yield value
        elif isinstance(value, dict):
            left += [each for name, each in reversed(value.items()) if name not in LABELS]
        elif isinstance(value, list):
            left += reversed(value)
