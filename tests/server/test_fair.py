"""Memory that tenants share is bounded, and nobody pushes out what little another one has."""

from __future__ import annotations

import random

from radixserve.server.fair import FairLru


def test_over_a_bound_the_largest_tenant_gives_up_its_oldest():
    kept: FairLru[int, str] = FairLru(most=10, most_bytes=100)
    kept.put("small", 0, "little", 10)
    for key in range(5):
        kept.put("large", key, str(key), 20)
    assert kept.get("small", 0) == "little"
    assert [kept.get("large", key) for key in range(5)] == [None, "1", "2", "3", "4"]
    assert (kept.size, len(kept)) == (90, 5)
    kept.get("large", 1)
    kept.put("large", 5, "5", 20)
    assert [kept.get("large", key) for key in (1, 2)] == ["1", None]


def test_what_is_too_large_by_itself_takes_nothing_from_others():
    kept: FairLru[int, str] = FairLru(most=10, most_bytes=100)
    kept.put("one", 0, "little", 10)
    kept.put("one", 1, "huge", 101)
    assert (kept.get("one", 0), kept.get("one", 1), kept.size) == ("little", None, 10)


def test_the_bounds_hold_and_the_sums_are_right_after_anything():
    rng = random.Random(5)
    kept: FairLru[int, int] = FairLru(most=20, most_bytes=500)
    sizes: dict[tuple[str, int], int] = {}
    for step in range(3000):
        tenant, key = rng.choice("abc"), rng.randrange(20)
        match rng.randrange(8):
            case 0:
                assert kept.remove(tenant, key) == ((tenant, key) in sizes)
            case 1:
                kept.forget(tenant, lambda key: key % 5 == 0)
            case 2 if step % 100 == 0:
                kept.forget(tenant)
            case _:
                size = rng.randrange(1, 60)
                kept.put(tenant, key, step, size)
                sizes[tenant, key] = size
        sizes = {who: size for who, size in sizes.items() if kept.get(*who) is not None}
        assert len(kept) == len(sizes) <= 20
        assert kept.size == sum(sizes.values()) <= 500
    kept.clear()
    assert (len(kept), kept.size) == (0, 0)
