"""How far two sequences are the same."""

from __future__ import annotations

from typing import AnyStr


def common_length(one: AnyStr, other: AnyStr) -> int:
    """The length of the longest common head of two texts or byte strings. By halving. O(length)."""
    low, high = 0, min(len(one), len(other))
    if other.startswith(one[low:high], low):
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if other.startswith(one[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low
