"""Tokens are compared, so that no two prompts are ever taken for each other."""

from __future__ import annotations

import random

import pytest

from radixserve.cache import identity
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import pack
from tests.cache.oracle import run
from tests.cache.serving import found, serve


def polynomial(tokens: list[int]) -> int:
    """The hash of a rolling kind that others have keyed their blocks with."""
    value = 0
    for token in tokens:
        value = (31 * value + token) % 2**64
    return value


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_prompts_made_to_collide_under_a_linear_hash_share_only_what_is_equal(page_size: int):
    chance = random.Random(4)
    cache = PrefixCache(4000, page_size)
    for _ in range(200):
        prompt = [chance.randrange(1000, 30_000) for _ in range(12)]
        place = chance.randrange(11)
        forged = list(prompt)
        forged[place] += 1
        forged[place + 1] -= 31
        assert polynomial(forged) == polynomial(prompt)
        serve(cache, prompt)
        assert found(cache, prompt) == 12
        assert found(cache, forged) == place
        assert serve(cache, forged) == place
        assert (found(cache, prompt), found(cache, forged)) == (12, 12)
    cache.check()


def test_numbers_that_python_hashes_alike_are_different_tokens():
    assert hash(-1) == hash(-2)
    cache = PrefixCache(16, 1)
    serve(cache, [-1, -1, -1])
    assert found(cache, [-2, -2, -2]) == 0
    assert found(cache, [-1, -1, -1]) == 3


def test_a_hash_with_only_256_values_changes_nothing_that_is_reused(
    monkeypatch: pytest.MonkeyPatch,
):
    class Weak:
        @staticmethod
        def xxh3_128_digest(data: bytes) -> bytes:
            return bytes([sum(data) % 256])

    monkeypatch.setattr(identity, "xxhash", Weak)
    cache = PrefixCache(16, 1)
    serve(cache, [1, 2])
    serve(cache, [2, 1])
    first, second = (cache.block_ids(pack([*each, 9]), b"") for each in ([1, 2], [2, 1]))
    assert first[1] == second[1], "the identities do not collide"
    assert run(3_000, seed=77)["reused"] > 200
