"""Where files that we make are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Where downloads, conversions and compiled kernels are kept; made if it is not there."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base) / "radixserve"
    directory.mkdir(parents=True, exist_ok=True)
    return directory
