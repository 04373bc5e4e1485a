"""Who loses pages when somebody needs some, and what nobody loses."""

from __future__ import annotations

import random

import pytest

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.quota import IDLE
from radixserve.tenant import OPEN, Terms
from radixserve.tokens import pack
from tests.cache.cost import bytecodes
from tests.cache.serving import found, idle, prefill, serve, serve_as, used


def terms(**tenants: tuple[float, float]) -> dict[str, Terms]:
    """Guaranteed and maximum share of each."""
    return {
        name: Terms(guaranteed=guaranteed, maximum=maximum)
        for name, (guaranteed, maximum) in tenants.items()
    }


def fill(cache: PrefixCache, tenant: str, pages: int, first: int = 0) -> None:
    """One-page prompts of ``tenant``, none like another."""
    size = cache.page_size
    for number in range(first, first + pages):
        serve_as(cache, tenant, [number] * size)


# Shares


def test_a_flood_of_one_tenant_leaves_the_prefix_of_another_alone() -> None:
    cache = PrefixCache(101, 4)
    hot = range(40)
    for _ in range(5):
        serve_as(cache, "b", hot)
    for document in range(60):
        serve_as(cache, "a", range(1000 * document, 1000 * document + 40))
        cache.end_step(cache.begin_step())
    assert found(cache, hot, b"b") == 40
    assert serve_as(cache, "b", [*hot, 1]) == 40
    assert used(cache, "a") == 90 - 1
    cache.check()


def test_two_tenants_that_want_everything_share_by_weight() -> None:
    cache = PrefixCache(101, 1)
    cache.set_terms({"a": Terms(weight=3.0), "b": Terms(weight=1.0)})
    for number in range(0, 1000, 10):
        fill(cache, "a", 10, number)
        fill(cache, "b", 10, number)
    assert abs(used(cache, "a") - 75) <= 1
    assert used(cache, "a") + used(cache, "b") == 100


def test_whoever_uses_most_beyond_its_guarantee_loses_pages_first() -> None:
    cache = PrefixCache(101, 1)
    cache.set_terms(terms(a=(0.5, 1.0)))
    fill(cache, "a", 60)
    fill(cache, "b", 40)
    fill(cache, "c", 20)
    assert (used(cache, "a"), used(cache, "b"), used(cache, "c")) == (60, 20, 20)
    fill(cache, "c", 30, 100)
    assert (used(cache, "a"), used(cache, "b"), used(cache, "c")) == (60, 19, 21)
    fill(cache, "d", 30)
    assert used(cache, "a") == 60
    assert min(used(cache, each) for each in "bcd") >= 13
    cache.check()


def test_many_salts_of_one_tenant_are_one_tenant() -> None:
    cache = PrefixCache(101, 4)
    serve_as(cache, "b", range(40))
    for salt in range(100):
        serve(cache, range(20), salt.to_bytes(2, "big"), tenant="a")
    assert found(cache, range(40), b"b") == 40
    assert used(cache, "a") == 90
    cache.check()


def test_a_part_of_the_pool_is_taken_at_a_turn_where_the_pool_is_large() -> None:
    cache = PrefixCache(2561, 1)
    fill(cache, "a", 1280)
    fill(cache, "b", 1280)
    fill(cache, "c", 200)
    assert abs(used(cache, "a") - used(cache, "b")) <= 10


# Maximum


def test_beyond_its_maximum_a_tenant_evicts_its_own_though_pages_are_free() -> None:
    cache = PrefixCache(101, 1)
    cache.set_terms(terms(a=(0.0, 0.2)))
    fill(cache, "b", 10)
    fill(cache, "a", 50)
    assert (used(cache, "a"), used(cache, "b")) == (20, 10)
    assert cache.pool.free == 70
    assert found(cache, [49], b"a") == 1
    assert found(cache, [0], b"a") == 0
    cache.check()


def test_a_request_larger_than_the_maximum_runs_and_its_pages_are_the_first_to_go() -> None:
    cache = PrefixCache(101, 1)
    cache.set_terms(terms(a=(0.1, 0.2)))
    fill(cache, "b", 30)
    serve_as(cache, "a", range(50))
    assert used(cache, "a") == 50
    fill(cache, "c", 25)
    assert (used(cache, "a"), used(cache, "b"), used(cache, "c")) == (45, 30, 25)
    fill(cache, "a", 1, 900)
    assert used(cache, "a") == 20
    assert found(cache, range(50), b"a") == 19
    cache.check()


# Guarantees


def test_what_is_guaranteed_is_never_evicted_for_another() -> None:
    cache = PrefixCache(101, 1)
    cache.set_terms(terms(a=(0.3, 1.0)))
    fill(cache, "a", 40)
    with prefill(cache, range(500, 540), b"b", tenant="b") as running:
        fill(cache, "b", 200, 1000)
        assert used(cache, "a") == 40
        with prefill(cache, [1], b"c", tenant="c"):
            assert not running.extend(30)
            assert running.extend(29)
            assert used(cache, "a") == 30
    cache.check()


def test_pages_of_running_requests_count_towards_a_guarantee() -> None:
    cache = PrefixCache(101, 1)
    cache.set_terms(terms(a=(0.3, 1.0)))
    fill(cache, "a", 20)
    with prefill(cache, range(500, 530), b"a", tenant="a"):
        assert cache.available_to("b") == 50 + 20
        lease = cache.reserve(pack(range(70)), b"b", 70, tenant="b")
        assert lease is not None
        assert used(cache, "a") == 30
        assert cache.available_to("b") == 0
        lease.release()
    assert cache.available_to("c") == 70
    cache.check()


def test_a_tenant_evicts_what_others_can_spare_before_what_is_guaranteed_to_itself() -> None:
    cache = PrefixCache(101, 1)
    cache.set_terms(terms(a=(0.5, 1.0), b=(0.4, 1.0)))
    fill(cache, "a", 50)
    fill(cache, "b", 50)
    with prefill(cache, range(1000, 1010), b"c", tenant="c"):
        assert (used(cache, "a"), used(cache, "b")) == (50, 40)
        lease = cache.reserve(pack(range(60)), b"b", 30, tenant="b")
        assert lease is not None
        assert (used(cache, "a"), used(cache, "b")) == (50, 40)


def test_when_all_is_guaranteed_to_others_a_request_waits_while_others_run_and_no_longer() -> None:
    cache = PrefixCache(101, 1)
    cache.set_terms(terms(a=(0.5, 1.0), b=(0.5, 1.0)))
    fill(cache, "a", 50)
    fill(cache, "b", 49)
    running = prefill(cache, [7000], b"b", tenant="b")
    assert cache.available_to("c") == 0
    tokens = pack(range(9000, 9100))
    assert cache.reserve(tokens, b"c", 100, tenant="c") is None
    assert cache.accounts.get("c") is None
    running.release()
    lease = cache.reserve(tokens, b"c", 100, tenant="c")
    assert lease is not None
    assert used(cache, "c") == 100
    cache.check()
    lease.release()
    assert idle(cache)


def test_a_request_waits_for_pages_that_a_step_gives_back_before_it_takes_guaranteed_ones() -> None:
    cache = PrefixCache(101, 1)
    cache.set_terms(terms(a=(0.5, 1.0)))
    fill(cache, "a", 50)
    other = cache.reserve(pack([1]), b"b", 50, tenant="b")
    assert other is not None
    step = cache.begin_step()
    other.release()
    assert cache.reserve(pack([2]), b"c", 10, tenant="c") is None
    cache.end_step(step)
    lease = cache.reserve(pack([2]), b"c", 10, tenant="c")
    assert lease is not None
    assert used(cache, "a") == 50


def test_terms_that_change_hold_from_then_on() -> None:
    cache = PrefixCache(101, 1)
    fill(cache, "a", 50)
    fill(cache, "b", 50)
    assert cache.available_to("c") == 100
    cache.set_terms(terms(a=(0.4, 1.0), b=(0.6, 1.0)))
    assert cache.available_to("c") == 10
    cache.set_terms({})
    assert cache.available_to("c") == 100
    cache.check()


# Tenants that are away


def test_a_tenant_that_asks_for_nothing_for_long_loses_pages_first_but_for_its_guarantee() -> None:
    cache = PrefixCache(101, 1)
    cache.set_terms(terms(b=(0.1, 1.0)))
    fill(cache, "b", 20)
    fill(cache, "c", 20)
    for number in range(0, 100 * (IDLE - 1), 50):
        fill(cache, "a", 50, 10_000 + number)
        serve_as(cache, "c", [19, 1])
    assert used(cache, "b") == 20
    for number in range(0, 200, 50):
        fill(cache, "a", 50, 90_000 + number)
        serve_as(cache, "c", [19, 1])
    assert (used(cache, "b"), used(cache, "c")) == (10, 21)
    assert used(cache, "a") >= 68
    cache.check()


def test_a_tenant_whose_request_runs_for_long_is_not_away() -> None:
    cache = PrefixCache(101, 1)
    fill(cache, "b", 20)
    with prefill(cache, [77], b"b", tenant="b"):
        for number in range(0, 200 * IDLE, 50):
            fill(cache, "a", 50, 10_000 + number)
        assert used(cache, "b") == 21


# Bounds


def test_thousands_of_salts_and_tenants_leave_nothing_behind() -> None:
    cache = PrefixCache(8, 4)
    for number in range(3000):
        name = f"t{number}"
        serve(cache, range(8), name.encode(), tenant=name)
        lease = cache.reserve(pack(range(4)), name.encode(), 4, tenant=name, keep=False)
        assert lease is not None
        lease.release()
        assert len(list(cache.accounts)) <= 11
    cache.evict(100)
    assert [account.tenant for account in cache.accounts] == [OPEN, ""]
    assert not cache.tree.roots
    assert len(cache.accounts.changed) <= 2
    assert len(cache.accounts._lately) <= 2
    cache.check()


def test_a_tenant_with_terms_keeps_its_account_until_it_has_none() -> None:
    cache = PrefixCache(8, 4)
    cache.set_terms(terms(a=(0.5, 1.0)))
    serve_as(cache, "a", range(8))
    cache.evict(100)
    account = cache.accounts.get("a")
    assert account is not None
    assert (account.used, account.suffered) == (0, 2)
    cache.set_terms({})
    assert cache.accounts.get("a") is None
    cache.check()


@pytest.mark.parametrize("salt", [b"", b"s"])
def test_a_namespace_belongs_to_the_tenant_that_made_it(salt: bytes) -> None:
    cache = PrefixCache(20, 4)
    with prefill(cache, range(8), salt, tenant="a"):
        with prefill(cache, range(12), salt, tenant="b") as lease:
            assert lease.account.tenant == "a"
            cache.check()
        assert (used(cache, "a"), used(cache, "b")) == (3, 0)


def test_evictions_are_booked_to_whom_they_hit_and_whom_they_served() -> None:
    cache = PrefixCache(11, 1)
    fill(cache, "a", 10)
    fill(cache, "b", 3)
    a, b = cache.accounts.of("a"), cache.accounts.of("b")
    assert (a.suffered, a.caused, b.suffered, b.caused) == (3, 0, 0, 3)
    assert cache.evicted == 3


def test_a_page_costs_the_same_to_evict_among_a_thousand_tenants_as_among_ten() -> None:
    costs = []
    for tenants in (10, 1000):
        cache = PrefixCache(4 * tenants + 1, 1)
        for number in range(4 * tenants):
            serve_as(cache, f"t{number % tenants}", [number])
        cache.evict(1)

        def evict(cache: PrefixCache = cache) -> None:
            for _ in range(20):
                assert cache.evict(1) == 1

        costs.append(bytecodes(evict))
    few, many = costs
    assert many < 2 * few


# What is promised holds


def test_admission_never_says_yes_where_eviction_then_fails() -> None:
    """What is refused needs more than there is, and what is let in gets all of it."""
    rng = random.Random(8)
    refused = 0
    for _ in range(300):
        cache = PrefixCache(31, 1)
        left = 1.0
        promised = {}
        for name in "abc":
            share = min(left, rng.choice((0.0, 0.2, 0.4)))
            left -= share
            promised[name] = Terms(guaranteed=share, maximum=rng.choice((share, 1.0)))
        cache.set_terms(promised)
        leases = []
        for _ in range(20):
            name = rng.choice("abcd")
            tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 12))]
            room = rng.randrange(15)
            wanted = max(0, room - cache.peek(pack(tokens), name.encode()).blocks)
            before = cache.available_to(name)
            state = (cache.pool.free, cache.tree.evictable, cache.tree.nodes, cache.evicted)
            lease = cache.reserve(pack(tokens), name.encode(), room, tenant=name)
            if lease is None:
                refused += 1
                pinned = len(tokens)
                assert wanted + pinned > before
                assert leases
                now = (cache.pool.free, cache.tree.evictable, cache.tree.nodes, cache.evicted)
                assert now == state
                leases.pop(rng.randrange(len(leases))).release()
            else:
                assert len(lease.pages) >= room
                if lease.extend(len(tokens) - lease.computed):
                    lease.copied()
                    lease.publish(len(tokens))
                leases.append(lease)
            cache.check()
    assert refused > 300
