"""Where files that we make are kept."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TypeVar

import msgspec

log = logging.getLogger(__name__)

Kept = TypeVar("Kept")


def cache_directory() -> Path:
    """Where downloads, conversions and compiled kernels are kept; made if it is not there."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base) / "radixserve"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def recalled(folder: str, name: str, kind: type[Kept]) -> Kept | None:
    """What ``keep`` was given there; None if nothing is, or nothing that can be read."""
    try:
        return msgspec.json.decode(_place(folder, name).read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def keep(folder: str, name: str, value: object) -> None:
    """Write ``value`` as JSON into a folder of the cache, all or nothing; a warning if it fails."""
    try:
        path = _place(folder, name)
        path.parent.mkdir(exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_bytes(msgspec.json.encode(value))
        beside.replace(path)
    except OSError as error:
        log.warning("%s cannot be kept, and will be measured at each start: %s", folder, error)


def _place(folder: str, name: str) -> Path:
    return cache_directory() / folder / f"{name}.json"
