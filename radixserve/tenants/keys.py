"""API keys: made of 256 random bits, kept as their SHA-256.

A slow, salted hash protects words that people choose. Of 2**256 random keys none can be guessed,
whatever a guess costs, so a fast hash keeps them as safely, and costs a request microseconds.
"""

from __future__ import annotations

import hashlib
import re
import secrets

KEY_PREFIX = "rsk_"
"""Lets people and scanners of leaked secrets see what it is."""
RANDOM_BYTES = 32
LONGEST_KEY = 256
"""Characters; longer ones are not even hashed."""
HASH_PREFIX = "sha256:"
HASH = re.compile(r"sha256:[0-9a-f]{64}")
ID_LENGTH = 8


def new_key() -> str:
    """A key that nobody has."""
    return KEY_PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def hash_of(key: str) -> str:
    """What is kept of ``key``."""
    return HASH_PREFIX + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def id_of(hash_: str) -> str:
    """What people call the key with this hash: the first digits of it."""
    return hash_.removeprefix(HASH_PREFIX)[:ID_LENGTH]
