"""A broken rule of the cache is a fault in this program, never the user's."""

from __future__ import annotations


class CacheError(Exception):
    """The cache was asked for something that its rules forbid, or its ledger does not balance."""
