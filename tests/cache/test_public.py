"""Prefixes that all tenants share, and what they do not share behind them."""

from __future__ import annotations

import pytest

from radixserve.cache.errors import CacheError
from radixserve.cache.namespace import PUBLIC, Namespace, on_engine
from radixserve.cache.node import walk
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tenant import Terms
from radixserve.tokens import pack
from tests.cache.serving import append, compute, found, idle, prefill, serve, serve_as

PROMPT = list(range(8))
"""Two blocks of four."""


def public(num_pages: int = 64, *prefixes: list[int]) -> PrefixCache:
    cache = PrefixCache(num_pages, 4)
    cache.set_public([pack(each) for each in prefixes or (PROMPT,)])
    return cache


def used(cache: PrefixCache, tenant: str) -> int:
    account = cache.accounts.get(tenant)
    return 0 if account is None else account.used


def test_what_one_tenant_computed_of_a_public_prefix_is_reused_by_all() -> None:
    cache = public()
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
    cache = public()
    serve_as(cache, "a", [*PROMPT, 20, 21, 22, 23, 24, 25])
    for tail in ([20, 21, 22, 23, 9], [20, 21, 9], [20, 9]):
        assert found(cache, [*PROMPT, *tail], b"b") == 8
        assert serve_as(cache, "b", [*PROMPT, *tail]) == 8
        cache.purge(b"b")
    assert found(cache, [*PROMPT, 20, 21, 22, 23, 24, 25], b"a") == 14


def test_a_prompt_that_has_only_a_part_of_a_public_prefix_is_private() -> None:
    cache = public()
    serve_as(cache, "a", PROMPT[:7])
    assert found(cache, PROMPT[:7], b"b") == 0
    serve_as(cache, "b", [*PROMPT, 1])
    assert found(cache, PROMPT[:7], b"c") == 0
    assert found(cache, PROMPT[:7], b"a") == 7
    cache.check()


def test_a_prompt_that_is_a_public_prefix_and_nothing_else_leaves_one_token_to_compute() -> None:
    cache = public()
    assert serve_as(cache, "a", PROMPT) == 0
    assert serve_as(cache, "b", PROMPT) == 7
    assert idle(cache)


def test_the_longest_public_prefix_wins_and_shorter_ones_share_its_head() -> None:
    longer = [*PROMPT, 50, 51, 52, 53]
    cache = public(64, PROMPT, longer)
    assert serve_as(cache, "a", [*longer, 1]) == 0
    assert serve_as(cache, "b", [*PROMPT, 60]) == 8
    assert serve_as(cache, "b", [*longer, 1]) == 12
    assert serve_as(cache, "c", [*PROMPT, 50, 51, 52, 9]) == 8, "nobody's neighbours are public"
    assert idle(cache)


def test_a_public_prefix_is_floored_to_whole_blocks() -> None:
    cache = public(64, [*PROMPT, 8, 9])
    serve_as(cache, "a", [*PROMPT, 8, 9, 10])
    assert found(cache, [*PROMPT, 8, 9, 10], b"b") == 8
    cache.set_public([pack([1, 2, 3]), b""])
    assert serve_as(cache, "a", [1, 2, 3, 4]) == 0
    assert found(cache, [1, 2, 3, 4], b"b") == 0


def test_pages_of_a_public_prefix_count_as_nobodys() -> None:
    cache = public()
    with prefill(cache, [*PROMPT, 20], b"a", tenant="a"):
        assert (used(cache, "a"), cache.accounts.public.used) == (1, 2)
    serve_as(cache, "b", [*PROMPT, 30])
    assert (used(cache, "b"), cache.accounts.public.used) == (1, 2)
    cache.check()


def test_an_open_block_of_a_public_prefix_is_public_too() -> None:
    cache = public(64, [*PROMPT, 8, 9, 10, 11])
    lease = cache.reserve(pack([*range(12), 1]), b"a", 12, tenant="a")
    assert lease is not None
    lease.publish(10)
    lease.release()
    assert cache.accounts.public.used == 3
    assert found(cache, [*range(12), 1], b"b") == 10
    assert idle(cache)


def test_two_who_compute_a_public_prefix_at_once_end_on_the_same_pages() -> None:
    cache = public()
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
    cache = public()
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


# Eviction


def test_a_public_prefix_is_evicted_last_and_only_after_what_follows_it() -> None:
    cache = public(11)
    serve_as(cache, "a", [*PROMPT, *range(100, 108)])
    serve_as(cache, "b", range(200, 220))
    cache.end_step(cache.begin_step())
    cache.evict(2 + 5)
    assert found(cache, [*PROMPT, 1], b"c") == 8
    cache.check()
    cache.evict(1)
    assert found(cache, [*PROMPT, 1], b"c") == 4
    cache.evict(100)
    assert cache.pool.free == 10
    assert (cache.tree.roots, cache.tree.hung, cache.tree.nodes) == ({}, {}, 0)
    cache.check()


def test_a_request_that_needs_the_whole_pool_gets_it_from_under_a_public_prefix() -> None:
    cache = public(11)
    cache.set_terms({"a": Terms(guaranteed=1.0)})
    serve_as(cache, "a", [*PROMPT, *range(100, 132)])
    assert cache.available_to("b") == 0
    lease = cache.reserve(pack(range(900, 940)), b"b", 40, tenant="b")
    assert lease is not None
    assert found(cache, [*PROMPT, 1], b"a") == 0
    cache.check()


def test_a_public_prefix_is_not_promised_to_anyone_while_others_pages_lie_behind_it() -> None:
    cache = public(11)
    cache.set_terms({"a": Terms(guaranteed=0.5)})
    serve_as(cache, "a", [*PROMPT, *range(100, 108)])
    with prefill(cache, [7], b"b", tenant="b"):
        assert cache.available_to("b") == 5
        assert cache.reserve(pack(range(900, 924)), b"b", 24, tenant="b") is None
        cache.check()


def test_a_public_prefix_that_nobody_asks_for_any_more_goes_like_anything_else() -> None:
    cache = public(101)
    serve_as(cache, "a", [*PROMPT, 1])
    for number in range(40):
        serve_as(cache, "b", range(1000 * number, 1000 * number + 100))
    assert cache.accounts.public.used == 0
    cache.check()


# Purges


def test_a_purge_takes_what_a_namespace_has_behind_public_prefixes_and_no_more() -> None:
    cache = public()
    serve_as(cache, "a", [*PROMPT, 1, 2, 3, 4])
    serve_as(cache, "a", [90, 91, 92, 93])
    serve_as(cache, "b", [*PROMPT, 1, 2, 3, 4])
    assert cache.purge(b"a").dropped == 2
    assert found(cache, [*PROMPT, 1, 2, 3, 4], b"a") == 8
    assert found(cache, [*PROMPT, 1, 2, 3, 4], b"b") == 12
    assert cache.reset(["b"]).dropped == 1
    assert found(cache, [*PROMPT, 1, 2, 3, 4], b"b") == 8
    assert cache.reset().dropped == 2
    assert cache.pool.free == 63
    cache.check()


def test_a_reset_under_load_lets_requests_behind_a_public_prefix_go_on() -> None:
    cache = public()
    lease = prefill(cache, [*PROMPT, 1, 2, 3, 4], b"a", tenant="a")
    assert cache.reset().held == 3
    cache.check()
    append(lease, *range(30, 40))
    assert found(cache, [*PROMPT, 1], b"b") == 0
    assert serve_as(cache, "b", [*PROMPT, 1]) == 0
    cache.check()
    lease.release()
    cache.check()
    assert found(cache, [*PROMPT, 1, 2, 3, 4], b"a") == 8
    assert cache.pool.free == 60


def test_spoilt_pages_of_a_public_prefix_leave_the_tree_too() -> None:
    cache = public()
    lease = prefill(cache, [*PROMPT, 1, 2, 3, 4], b"a", tenant="a")
    lease.release(keep=False)
    assert found(cache, [*PROMPT, 1], b"a") == 0
    assert cache.pool.free == 63
    other = prefill(cache, [*PROMPT, 5, 6, 7, 8], b"b", tenant="b")
    prefill(cache, [*PROMPT, 1, 2, 3, 4], b"a", tenant="a").release(keep=False)
    assert found(cache, [*PROMPT, 1, 2, 3, 4], b"a") == 8
    other.release()
    assert idle(cache)


def test_a_spoilt_request_that_holds_nothing_behind_a_public_prefix_takes_it_along() -> None:
    cache = public()
    lease = prefill(cache, [*PROMPT, 1], b"a", tenant="a")
    lease.release(keep=False)
    assert found(cache, [*PROMPT, 1], b"a") == 0
    assert idle(cache)


def test_a_public_page_that_a_step_in_flight_reads_is_not_evicted_after_a_purge() -> None:
    cache = public(5)
    lease = prefill(cache, [*PROMPT, 1, 2, 3, 4], b"a", tenant="a")
    step = cache.begin_step()
    lease.release()
    cache.purge(b"a")
    cache.check()
    assert cache.evict(2) == 0
    cache.end_step(step)
    assert cache.evict(2) == 2


def test_a_public_page_that_a_step_in_flight_reads_is_not_evicted_after_a_reset() -> None:
    cache = public(5)
    lease = prefill(cache, [*PROMPT, 1, 2, 3, 4], b"a", tenant="a")
    step = cache.begin_step()
    cache.reset(["a"])
    lease.release()
    assert cache.tree.evictable == 2
    assert cache.evict(2) == 0
    cache.end_step(step)
    assert cache.evict(2) == 2
    cache.check()


# Withdrawal


def test_what_is_public_no_more_is_found_by_nobody_and_running_requests_keep_it() -> None:
    cache = public()
    serve_as(cache, "b", [*PROMPT, 7])
    lease = prefill(cache, [*PROMPT, 1, 2, 3, 4], b"a", tenant="a")
    row = list(lease.pages)
    cache.set_public([])
    cache.check()
    assert found(cache, [*PROMPT, 1], b"b") == 0
    append(lease, *range(30, 40))
    assert list(lease.pages[:3]) == row
    assert serve_as(cache, "b", [*PROMPT, 7]) == 0
    assert found(cache, [*PROMPT, 7], b"a") == 0
    cache.check()
    lease.release()
    cache.check()
    assert (cache.tree.hung, cache.accounts.public.used) == ({}, 0)
    assert idle(cache)


def test_who_computes_a_prefix_that_is_withdrawn_meanwhile_leaves_none_of_the_rest() -> None:
    cache = public(64, PROMPT, [*PROMPT[:4], 90, 91, 92, 93])
    lease = cache.reserve(pack([*PROMPT, 1, 2, 3]), b"a", 11, tenant="a")
    assert lease is not None
    lease.publish(4)
    cache.set_public([pack([*PROMPT[:4], 90, 91, 92, 93])])
    lease.publish(10)
    lease.release()
    cache.check()
    assert found(cache, [*PROMPT, 1], b"a") == 0
    assert found(cache, [*PROMPT[:4], 90, 91, 92, 93, 1], b"b") == 4
    assert idle(cache)


def test_withdrawing_one_prefix_leaves_what_it_has_in_common_with_another() -> None:
    other = [*PROMPT[:4], 90, 91, 92, 93]
    cache = public(64, PROMPT, other)
    serve_as(cache, "a", [*PROMPT, 1])
    serve_as(cache, "a", [*other, 1])
    cache.set_public([pack(other)])
    cache.check()
    assert found(cache, [*other, 1], b"b") == 8
    assert found(cache, [*other, 1], b"a") == 9
    assert cache.accounts.public.used == 2
    assert idle(cache)


def test_a_prefix_may_be_public_again() -> None:
    cache = public()
    lease = prefill(cache, [*PROMPT, 1], b"a", tenant="a")
    for _ in range(3):
        cache.set_public([])
        cache.set_public([pack(PROMPT)])
        assert serve_as(cache, "b", [*PROMPT, 1]) == 0
        assert serve_as(cache, "b", [*PROMPT, 1]) == 8
        cache.check()
    lease.release()
    assert idle(cache)


def test_withdrawing_a_prefix_leaves_a_longer_one_whole() -> None:
    longer = [*PROMPT, 50, 51, 52, 53]
    cache = public(64, PROMPT, longer)
    serve_as(cache, "a", [*longer, 1])
    serve_as(cache, "a", [*PROMPT, 1])
    cache.set_public([pack(longer)])
    cache.check()
    assert found(cache, [*longer, 1], b"a") == 13
    assert found(cache, [*PROMPT, 1], b"a") == 0


def test_saying_the_same_prefixes_again_changes_nothing() -> None:
    cache = public()
    serve_as(cache, "a", [*PROMPT, 1])
    cache.set_public([pack(PROMPT), pack(PROMPT)])
    assert found(cache, [*PROMPT, 1], b"a") == 9


def test_what_was_private_before_a_prefix_became_public_stays_so() -> None:
    cache = PrefixCache(64, 4)
    lease = prefill(cache, [*PROMPT, 1], b"a", tenant="a")
    cache.set_public([pack(PROMPT)])
    append(lease, 2, 3, 4)
    lease.release()
    assert found(cache, [*PROMPT, 1], b"b") == 0
    assert serve_as(cache, "b", [*PROMPT, 1]) == 0
    assert found(cache, [*PROMPT, 1], b"a") == 8
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
    cache = public()
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
    cache = public()
    serve_as(cache, "a", [*PROMPT, 1, 2, 3, 4])
    serve_as(cache, "b", [*PROMPT, 1, 2, 3, 4])
    cache.check()
    plant(cache)
    with pytest.raises(CacheError, match=message):
        cache.check()


@pytest.mark.parametrize("whose", ["namespace", "tenant"])
def test_who_is_purged_while_in_the_public_part_publishes_nothing_behind_it(whose: str) -> None:
    cache = public()
    prompt = [*PROMPT, 20, 21, 22, 23]
    leases = [cache.reserve(pack(prompt), name.encode(), 12, tenant=name) for name in ("a", "b")]
    one, two = (lease for lease in leases if lease is not None)
    for lease in (one, two):
        compute(lease, 4)
    purge = cache.purge(b"a") if whose == "namespace" else cache.reset(["a"])
    assert (purge.dropped, purge.held) == (0, 0)
    for lease in (one, two):
        compute(lease, 8)
        cache.check()
        lease.release()
    assert found(cache, prompt, b"a") == 8
    assert found(cache, prompt, b"b") == 12
    assert serve_as(cache, "a", [*prompt, 1]) == 8
    assert found(cache, prompt, b"a") == 12
    assert idle(cache)
