"""Lines of a log or a trace, plain or compressed, of which none takes more memory than one may."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

GZIP = b"\x1f\x8b"
MARK = b"\xef\xbb\xbf"
"""What some programs begin a file of UTF-8 with."""
LONGEST = 64 * 2**20
"""Bytes of a line."""


def lines(
    path: Path, refuse: Callable[[int, str], object], progress: Callable[[int], object]
) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, from 1.

    Args:
        refuse: Told the numbers of those that are too long, and why they are not among them.
        progress: Called with bytes of the file, as many as were read.

    Raises:
        OSError: it cannot be read.
        EOFError, zlib.error: what is compressed ends or breaks here.
    """
    with path.open("rb") as file:
        number = seen = 0
        unpacked = _unpacked(file)
        while raw := unpacked.readline(LONGEST):
            number += 1
            if whole := len(raw) < LONGEST or raw.endswith(b"\n"):
                yield number, raw.removeprefix(MARK) if number == 1 else raw
            else:
                refuse(number, f"longer than {LONGEST} bytes")
            while not whole and raw and not raw.endswith(b"\n"):
                raw = unpacked.readline(LONGEST)
            if file.seekable():
                progress(file.tell() - seen)
                seen = file.tell()


def _unpacked(file: BinaryIO) -> BinaryIO:
    if not file.seekable():
        return file
    head = file.read(len(GZIP))
    file.seek(0)
    return cast("BinaryIO", gzip.GzipFile(fileobj=file)) if head == GZIP else file
