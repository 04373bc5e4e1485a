"""How much memory this process may still take."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on ``device`` without swapping or being killed.

    On the CPU the smaller of what the kernel calls available and what the control group has left
    (caches that it would drop count as free).
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    available = _available()
    left = _cgroup_left(Path("/sys/fs/cgroup"))
    return available if left is None else min(available, left)


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux: all that is installed is the best that can be known
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _cgroup_left(root: Path) -> int | None:
    """Bytes left in the control group mounted at ``root`` (version 2, then 1); None: no limit."""
    for limit_file, usage_file, folder in (
        ("memory.max", "memory.current", root),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", root / "memory"),
    ):
        try:
            limit = (folder / limit_file).read_text().strip()
            usage = int((folder / usage_file).read_text())
            stat = dict(
                line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines()
            )
        except OSError:
            continue
        if limit == "max":
            return None
        return max(int(limit) - usage + int(stat.get("inactive_file", 0)), 0)
    return None
