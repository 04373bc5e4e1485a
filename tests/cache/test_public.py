"""Prefixes that all tenants share, and what they do not share behind them."""

from __future__ import annotations

import pytest

from radixserve.cache.errors import CacheError
from radixserve.cache.namespace import PUBLIC, Namespace, on_engine
from radixserve.cache.node import walk
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import pack
from tests.cache.serving import compute, found, idle, prefill, public, serve, serve_as, used

PROMPT = list(range(8))
"""Two blocks of four."""


def test_what_one_tenant_computed_of_a_public_prefix_is_reused_by_all() -> None:
    cache = public(PROMPT)
    assert serve_as(cache, "a", [*PROMPT, 20, 21, 22, 23, 24]) == 0
    assert serve_as(cache, "b", [*PROMPT, 30, 31]) == 8
    assert serve_as(cache, "a", [*PROMPT, 20, 21, 22, 23, 24]) == 12
    one = prefill(cache, [*PROMPT, 1], b"a", tenant="a")
    two = prefill(cache, [*PROMPT, 1], b"b", tenant="b")
    assert one.pages[:2] == two.pages[:2]
    assert one.pages[2] != two.pages[2]
    cache.check()
    one.release()
    two.release()
    assert idle(cache)


def test_what_follows_a_public_prefix_is_shared_with_nobody_not_even_a_part_of_a_block() -> None:
    cache = public(PROMPT)
    serve_as(cache, "a", [*PROMPT, 20, 21, 22, 23, 24, 25])
    for tail in ([20, 21, 22, 23, 9], [20, 21, 9], [20, 9]):
        assert found(cache, [*PROMPT, *tail], b"b") == 8
        assert serve_as(cache, "b", [*PROMPT, *tail]) == 8
        cache.purge(b"b")
    assert found(cache, [*PROMPT, 20, 21, 22, 23, 24, 25], b"a") == 14


def test_a_prompt_that_has_only_a_part_of_a_public_prefix_is_private() -> None:
    cache = public(PROMPT)
    serve_as(cache, "a", PROMPT[:7])
    assert found(cache, PROMPT[:7], b"b") == 0
    serve_as(cache, "b", [*PROMPT, 1])
    assert found(cache, PROMPT[:7], b"c") == 0
    assert found(cache, PROMPT[:7], b"a") == 7
    cache.check()


def test_a_prompt_that_is_a_public_prefix_and_nothing_else_leaves_one_token_to_compute() -> None:
    cache = public(PROMPT)
    assert serve_as(cache, "a", PROMPT) == 0
    assert serve_as(cache, "b", PROMPT) == 7
    assert idle(cache)


def test_the_longest_public_prefix_wins_and_shorter_ones_share_its_head() -> None:
    longer = [*PROMPT, 50, 51, 52, 53]
    cache = public(PROMPT, longer)
    assert serve_as(cache, "a", [*longer, 1]) == 0
    assert serve_as(cache, "b", [*PROMPT, 60]) == 8
    assert serve_as(cache, "b", [*longer, 1]) == 12
    assert serve_as(cache, "c", [*PROMPT, 50, 51, 52, 9]) == 8, "nobody's neighbours are public"
    assert idle(cache)


def test_a_public_prefix_is_floored_to_whole_blocks() -> None:
    cache = public([*PROMPT, 8, 9])
    serve_as(cache, "a", [*PROMPT, 8, 9, 10])
    assert found(cache, [*PROMPT, 8, 9, 10], b"b") == 8
    cache.set_public([pack([1, 2, 3]), b""])
    assert serve_as(cache, "a", [1, 2, 3, 4]) == 0
    assert found(cache, [1, 2, 3, 4], b"b") == 0


def test_pages_of_a_public_prefix_count_as_nobodys() -> None:
    cache = public(PROMPT)
    with prefill(cache, [*PROMPT, 20], b"a", tenant="a"):
        assert (used(cache, "a"), cache.accounts.public.used) == (1, 2)
    serve_as(cache, "b", [*PROMPT, 30])
    assert (used(cache, "b"), cache.accounts.public.used) == (1, 2)
    cache.check()


def test_an_open_block_of_a_public_prefix_is_public_too() -> None:
    cache = public([*PROMPT, 8, 9, 10, 11])
    lease = cache.reserve(pack([*range(12), 1]), b"a", 12, tenant="a")
    assert lease is not None
    lease.publish(10)
    lease.release()
    assert cache.accounts.public.used == 3
    assert found(cache, [*range(12), 1], b"b") == 10
    assert idle(cache)


def test_two_who_compute_a_public_prefix_at_once_end_on_the_same_pages() -> None:
    cache = public(PROMPT)
    one = cache.reserve(pack([*PROMPT, 1]), b"a", 9, tenant="a")
    two = cache.reserve(pack([*PROMPT, 1]), b"b", 9, tenant="b")
    assert one is not None
    assert two is not None
    for lease in (one, two):
        lease.publish(4)
        cache.check()
    for lease in (two, one):
        lease.publish(9)
        cache.check()
    assert one.pages[:2] == two.pages[:2]
    assert (used(cache, "a"), used(cache, "b"), cache.accounts.public.used) == (1, 1, 2)


def test_a_fork_in_the_middle_of_a_public_prefix_goes_on_in_its_own_namespace() -> None:
    cache = public(PROMPT)
    lease = cache.reserve(pack([*PROMPT, 1]), b"a", 4, tenant="a")
    assert lease is not None
    lease.publish(4)
    with lease.fork(bytearray(pack([*PROMPT, 2]))) as twin:
        compute(twin, 5)
        cache.check()
    compute(lease, 5)
    lease.release()
    assert found(cache, [*PROMPT, 2], b"a") == 9
    assert found(cache, [*PROMPT, 2], b"b") == 8
    assert idle(cache)


# What else keeps apart


def test_kv_of_two_formats_is_not_shared_through_a_public_prefix() -> None:
    cache = PrefixCache(64, 4)
    cache.set_public([pack(PROMPT)], namespace=on_engine("fp8 1", PUBLIC))
    serve(cache, [*PROMPT, 1], on_engine("fp8 1", b"a"))
    assert cache.tree.roots.keys() == {on_engine("fp8 1", PUBLIC)}


def test_no_client_can_name_the_public_namespace() -> None:
    keys = {Namespace(tenant=tenant, salt=tenant).key() for tenant in (None, "", "\xff", "ÿ")}
    assert not any(key.startswith(PUBLIC) for key in keys)


def test_without_a_cache_nothing_is_public() -> None:
    cache = PrefixCache(64, 4, enabled=False)
    cache.set_public([pack(PROMPT)])
    for tenant in "ab":
        assert serve_as(cache, tenant, [*PROMPT, 1]) == 0
    assert idle(cache)


@pytest.mark.parametrize("keep", [True, False])
def test_a_request_that_keeps_nothing_takes_what_is_public(keep: bool) -> None:
    cache = public(PROMPT)
    for number, expected in enumerate((0, 8 if keep else 0)):
        tokens = pack([*PROMPT, number, 1])
        lease = cache.reserve(tokens, b"a", 10, tenant="a", keep=keep)
        assert lease is not None
        assert lease.reused == expected
        lease.publish(10)
        lease.release()
    assert idle(cache)


# The ledger


def _hung(cache: PrefixCache, namespace: bytes = b"a"):
    return cache.tree.hung[namespace, pack(PROMPT)]


def _plant_root_elsewhere(cache: PrefixCache) -> None:
    cache.tree.hung[b"x", pack(PROMPT)] = cache.tree.hung.pop((b"a", pack(PROMPT)))


def _plant_root_at_another_depth(cache: PrefixCache) -> None:
    _hung(cache).end = 4


def _plant_root_miscounted(cache: PrefixCache) -> None:
    above = _hung(cache).above
    assert above is not None
    cache.tree._roots._below[above] += 1


def _plant_public_pages_on_a_tenant(cache: PrefixCache) -> None:
    account = _hung(cache).account
    for node in walk(cache.tree.roots[PUBLIC]):
        node.account = account


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (_plant_root_elsewhere, "hangs elsewhere"),
        (_plant_root_at_another_depth, "end of a public prefix|anchored|depth"),
        (_plant_root_miscounted, "miscounted"),
        (_plant_public_pages_on_a_tenant, "end of a public prefix|pages and has"),
    ],
)
def test_a_planted_fault_is_found(plant, message: str) -> None:
    cache = public(PROMPT)
    serve_as(cache, "a", [*PROMPT, 1, 2, 3, 4])
    serve_as(cache, "b", [*PROMPT, 1, 2, 3, 4])
    cache.check()
    plant(cache)
    with pytest.raises(CacheError, match=message):
        cache.check()
