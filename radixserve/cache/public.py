"""Prefixes that an operator made public: all tenants share their pages, and nothing behind them.

::

    public root - system prompt, tools ]--- root of (tenant a, this prefix) - ...
                                       |--- root of (tenant b, this prefix) - ...

A request that begins with a public prefix is matched, computed and published below the public root
up to the end of the prefix, and below its own namespace's root from there on. The tokens of the
public part are known to everybody, so that what is shared there tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from radixserve.cache.namespace import PUBLIC
from radixserve.cache.node import Tokens, common_head


class PublicPrefixes:
    """The prefixes, as whole blocks of ``block`` bytes, and the namespace of what they share."""

    __slots__ = ("_block", "_longest_first", "namespace")

    def __init__(self, block: int):
        self._block = block
        self._longest_first: list[bytes] = []
        self.namespace = PUBLIC

    def set(self, prefixes: Iterable[Tokens]) -> list[bytes]:
        """These are public from now on, floored to whole blocks; returns those that no longer are.
        O(tokens)."""
        whole = {bytes(each[: len(each) - len(each) % self._block]) for each in prefixes}
        gone = [each for each in self._longest_first if each not in whole]
        self._longest_first = sorted(whole - {b""}, key=lambda each: (-len(each), each))
        return gone

    def of(self, tokens: Tokens) -> bytes:
        """The longest public prefix that ``tokens`` begins with, or b"". O(prefixes)."""
        for prefix in self._longest_first:
            if tokens.startswith(prefix):
                return prefix
        return b""

    def common(self, prefix: bytes) -> int:
        """Bytes of whole blocks that ``prefix`` has in common with one of these. O(tokens)."""
        heads = (common_head(each, prefix, 0, len(prefix)) for each in self._longest_first)
        most = max(heads, default=0)
        return most - most % self._block
