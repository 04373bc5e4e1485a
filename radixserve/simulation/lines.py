"""Lines of a log or a trace, plain or compressed, of which none takes more memory than one may."""

from __future__ import annotations

import errno
import gzip
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

GZIP = b"\x1f\x8b"
MARK = b"\xef\xbb\xbf"
"""What some programs begin a file of UTF-8 with."""
FOREIGN = {
    b"\xff\xfe\x00\x00": "it is UTF-32: write it as UTF-8",
    b"\xff\xfe": "it is UTF-16: write it as UTF-8",
    b"\xfe\xff": "it is UTF-16: write it as UTF-8",
    b"\x28\xb5\x2f\xfd": "it is compressed with zstd: unpack it, or use gzip",
    b"\xfd7zXZ\x00": "it is compressed with xz: unpack it, or use gzip",
    b"BZh": "it is compressed with bzip2: unpack it, or use gzip",
    b"PK\x03\x04": "it is a zip archive: unpack it, or use gzip",
}
"""How files begin that have no lines to read."""
LONGEST = 64 * 2**20
"""Bytes of a line."""


def lines(
    path: Path, refuse: Callable[[int, str], object], progress: Callable[[int], object]
) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, from 1.

    Args:
        refuse: Told the numbers of those that are not among them, and why: too long, or the whole
            file is no text.
        progress: Called with bytes of the file, as many as were read.

    Raises:
        OSError: it cannot be read.
        EOFError, zlib.error: what is compressed ends or breaks here.
    """
    with path.open("rb") as file, _broken():
        kind = os.fstat(file.fileno()).st_mode
        if stat.S_ISBLK(kind) or (stat.S_ISCHR(kind) and not file.isatty()):
            raise OSError(errno.EINVAL, "it is a device, which may have no end")
        if why := _foreign(file):
            refuse(1, why)
            return
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


@contextmanager
def _broken() -> Iterator[None]:
    try:
        yield
    except gzip.BadGzipFile as error:
        raise EOFError(str(error)) from error


def _foreign(file: BinaryIO) -> str | None:
    """Why there are no lines in it."""
    if not file.seekable():
        return None
    head = file.read(max(map(len, FOREIGN)))
    file.seek(0)
    return next((why for mark, why in FOREIGN.items() if head.startswith(mark)), None)


def _unpacked(file: BinaryIO) -> BinaryIO:
    if not file.seekable():
        return file
    head = file.read(len(GZIP))
    file.seek(0)
    return cast("BinaryIO", gzip.GzipFile(fileobj=file)) if head == GZIP else file
