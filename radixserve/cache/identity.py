"""What blocks are called outside of the process."""

from __future__ import annotations

import xxhash

from radixserve.cache.node import Tokens
from radixserve.tokens import TOKEN_BYTES


def block_ids(tokens: Tokens, namespace: bytes, page_size: int) -> list[str]:
    """Chained xxh3-128 of each whole block, in hexadecimal. O(tokens)."""
    block = page_size * TOKEN_BYTES
    digest = xxhash.xxh3_128_digest(b"radixserve:" + namespace)
    ids = []
    for at in range(0, len(tokens) - block + 1, block):
        digest = xxhash.xxh3_128_digest(digest + tokens[at : at + block])
        ids.append(digest.hex())
    return ids
