"""Large pieces of memory that are read in every step."""

from __future__ import annotations

import mmap

import torch


def huge(size: int) -> torch.Tensor:
    """uint8 [size], zeros, in huge pages where the system has them (``madvise``).

    With pages of 4 KB the processor looks addresses up, and stops reading ahead, every 64 lines.
    Nothing is taken from the machine before it is written.

    Raises:
        MemoryError: the system refuses that much.
    """
    try:
        # Private: the system's huge pages are for memory that no other process may map.
        memory = mmap.mmap(
            -1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes cannot be mapped: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)[:size]
