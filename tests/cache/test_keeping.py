from __future__ import annotations

from collections.abc import Iterable

from radixserve.cache.keeping import node_at
from radixserve.cache.node import Root, walk
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.terms import KeepCounts, Keeping, Kept, KeptPages, Mark, term
from radixserve.tenant import OPEN, Terms
from radixserve.tokens import pack
from tests.cache.serving import compute, found, idle, nodes, prefill, serve

ALL = 1000


def cache_of(pages: int, page_size: int = 4, *, keep: float = 1.0) -> PrefixCache:
    return PrefixCache(pages + 1, page_size, keep=keep)


def keep(
    cache: PrefixCache,
    tokens: Iterable[int],
    *marks: tuple[int | None, int],
    session: str = "",
    last: bool = False,
    namespace: bytes = b"",
    tenant: str = OPEN,
) -> Kept | None:
    """A whole request that marks these places."""
    lease = prefill(cache, tokens, namespace, tenant=tenant)
    reused = lease.reused
    kept = cache.finish(lease, Keeping(tuple(Mark(*each) for each in marks), session, last), reused)
    cache.check()
    return kept


def tick(cache: PrefixCache) -> None:
    cache.end_step(cache.begin_step())


def held(cache: PrefixCache, tenant: str = OPEN) -> int:
    """Pages that are kept."""
    account = cache.accounts.get(tenant)
    return 0 if account is None else account.kept.total(cache.time)


def evict_one_by_one(cache: PrefixCache, *prompts: Iterable[int]) -> list[int]:
    """Which of ``prompts``, by place, loses each next page."""
    lost = []
    whole = [list(each) for each in prompts]
    before = [found(cache, each) for each in whole]
    while cache.evict(1):
        cache.check()
        after = [found(cache, each) for each in whole]
        lost += [place for place, (b, a) in enumerate(zip(before, after, strict=True)) if a < b]
        before = after
    return lost


def test_what_is_kept_goes_last_however_old_it_is() -> None:
    cache = cache_of(16)
    assert keep(cache, range(8), (8, 60)) == Kept("granted", 8)
    tick(cache)
    serve(cache, range(100, 108))
    assert evict_one_by_one(cache, range(8), range(100, 108)) == [1, 1, 0, 0]


def test_of_what_is_kept_the_shortest_time_goes_first() -> None:
    cache = cache_of(16)
    keep(cache, range(8), (8, 60))
    keep(cache, range(100, 108), (8, 30))
    keep(cache, range(200, 208), (8, 45))
    prompts = range(8), range(100, 108), range(200, 208)
    assert evict_one_by_one(cache, *prompts) == [1, 1, 2, 2, 0, 0]


def test_the_block_that_holds_the_mark_is_kept_and_the_next_one_is_not() -> None:
    for mark, blocks in ((1, 1), (4, 1), (5, 2), (8, 2), (9, 3)):
        cache = cache_of(16)
        assert keep(cache, range(16), (mark, 60)) == Kept("granted", mark)
        assert held(cache) == blocks
        tick(cache)
        serve(cache, range(100, 104))
        cache.evict(5 - blocks)
        assert found(cache, range(16)) == blocks * 4
        assert found(cache, range(100, 104)) == 0


def test_a_mark_in_the_open_block_keeps_it_and_one_before_it_does_not() -> None:
    for mark, blocks in ((4, 1), (5, 2), (6, 2)):
        cache = cache_of(16)
        assert keep(cache, range(6), (mark, 60)) == Kept("granted", mark)
        assert held(cache) == blocks
        tick(cache)
        serve(cache, range(100, 104))
        cache.evict(3 - blocks)
        assert found(cache, range(6)) == (6 if blocks == 2 else 4)


def test_an_open_block_that_another_has_continued_stays_kept() -> None:
    cache = cache_of(16)
    keep(cache, range(6), (6, 60))
    serve(cache, range(12))
    assert held(cache) == 2
    tick(cache)
    assert nodes(cache) == [(8, [*range(8)]), (12, [*range(8, 12)])]
    cache.check()
    assert cache.evict(1) == 1
    assert found(cache, range(12)) == 8


def test_an_open_block_that_became_longer_stays_kept() -> None:
    cache = cache_of(16)
    keep(cache, range(5), (5, 60))
    serve(cache, range(7))
    cache.check()
    assert held(cache) == 2
    assert found(cache, range(7)) == 7


def test_the_open_block_of_one_that_was_continued_meanwhile_is_kept_too() -> None:
    cache = cache_of(16)
    lease = prefill(cache, range(6))
    serve(cache, range(16))
    assert cache.finish(lease, Keeping((Mark(6, 60),))) == Kept("granted", 6)
    cache.check()
    assert held(cache) == 2
    tick(cache)
    assert cache.evict(2) == 2
    assert found(cache, range(16)) == 8


def test_what_is_kept_for_too_long_goes_by_age_and_nobody_had_to_watch() -> None:
    cache = cache_of(16)
    keep(cache, range(8), (8, 60))
    tick(cache)
    serve(cache, range(100, 108))
    cache.time = 59
    assert held(cache) == 2
    cache.time = 60
    assert held(cache) == 0
    assert evict_one_by_one(cache, range(8), range(100, 108)) == [0, 0, 1, 1]


def test_a_hit_begins_the_time_anew() -> None:
    cache = cache_of(16)
    keep(cache, range(8), (8, 60))
    cache.time = 50
    serve(cache, [*range(8), 50])
    cache.check()
    cache.time = 109
    assert held(cache) == 2
    cache.time = 110
    assert held(cache) == 0


def test_a_hit_of_the_open_block_begins_its_time_anew() -> None:
    cache = cache_of(16)
    keep(cache, range(6), (6, 60))
    cache.time = 50
    serve(cache, [*range(6), 99])
    cache.check()
    cache.time = 100
    assert held(cache) == 2


def test_a_hit_when_it_is_over_begins_nothing() -> None:
    cache = cache_of(16)
    keep(cache, range(8), (8, 60))
    cache.time = 60
    serve(cache, [*range(8), 50])
    cache.check()
    assert held(cache) == 0


def test_a_hit_of_the_front_alone_does_not_keep_the_rest_for_longer() -> None:
    cache = cache_of(16)
    keep(cache, range(16), (16, 60))
    cache.time = 50
    serve(cache, [*range(8), 50])
    cache.check()
    cache.time = 60
    assert held(cache) == 2


def test_each_mark_has_its_own_time() -> None:
    cache = cache_of(16)
    assert keep(cache, range(16), (4, 3600), (12, 300)) == Kept("granted", 12)
    assert held(cache) == 3
    cache.time = 300
    assert held(cache) == 1
    cache.time = 3600
    assert held(cache) == 0


def test_a_longer_time_further_on_holds_for_what_is_before_it() -> None:
    cache = cache_of(16)
    assert keep(cache, range(16), (4, 300), (12, 3600)) == Kept("granted", 12)
    cache.time = 300
    assert held(cache) == 3
    assert nodes(cache) == [(12, [*range(12)]), (16, [*range(12, 16)])]


def test_a_mark_on_all_keeps_the_answer_too() -> None:
    cache = cache_of(16)
    assert keep(cache, range(10), (None, 60)) == Kept("granted", 10)
    assert held(cache) == 3


def test_a_conversation_that_goes_on_leaves_one_seam() -> None:
    cache = cache_of(64)
    for turn in range(1, 10):
        assert keep(cache, range(8 * turn), (8 * turn - 4, 60)) == Kept("granted", 8 * turn - 4)
    assert nodes(cache) == [(68, [*range(68)]), (72, [*range(68, 72)])]


def test_what_is_computed_behind_a_kept_prefix_is_not_kept() -> None:
    cache = cache_of(32)
    keep(cache, range(8), (8, 60))
    lease = prefill(cache, [*range(8), *range(50, 54)])
    for token in range(20):
        assert isinstance(lease.tokens, bytearray)
        lease.tokens.extend(pack([token]))
        compute(lease, 1)
    cache.check()
    lease.release()
    assert held(cache) == 2
    assert len(nodes(cache)) == 2


def test_beyond_the_budget_the_front_is_kept_and_it_is_said() -> None:
    cache = cache_of(16, keep=0.25)
    assert keep(cache, range(32), (32, 60)) == Kept("partial", 16)
    assert held(cache) == 4
    assert keep(cache, range(100, 108), (8, 60)) == Kept("refused", 0)
    assert held(cache) == 4
    cache.time = 60
    assert keep(cache, range(100, 108), (8, 60)) == Kept("granted", 8)


def test_one_mark_granted_and_one_refused_is_partial() -> None:
    cache = cache_of(16, keep=0.25)
    assert keep(cache, range(32), (16, 60), (32, 60)) == Kept("partial", 16)


def test_the_open_block_is_the_first_that_there_is_no_room_for() -> None:
    cache = cache_of(16, keep=0.25)
    assert keep(cache, range(18), (18, 60)) == Kept("partial", 16)
    assert held(cache) == 4


def test_what_two_keep_is_counted_once() -> None:
    cache = cache_of(16, keep=0.25)
    trunk = [*range(12)]
    assert keep(cache, [*trunk, 50, 51, 52, 53], (16, 60)) == Kept("granted", 16)
    assert keep(cache, [*trunk, 60, 61, 62, 63], (12, 60)) == Kept("granted", 12)
    assert keep(cache, [*trunk, 60, 61, 62, 63], (16, 60)) == Kept("partial", 12)
    assert held(cache) == 4


def test_what_had_to_go_gives_its_budget_back() -> None:
    cache = cache_of(16, keep=0.25)
    keep(cache, range(16), (16, 60))
    assert cache.evict(2) == 2
    assert held(cache) == 2
    cache.evict(ALL)
    assert held(cache) == 0
    assert keep(cache, range(100, 116), (16, 60)) == Kept("granted", 16)


def test_a_pool_that_is_all_kept_still_serves() -> None:
    cache = cache_of(8)
    for first in (0, 100):
        assert keep(cache, range(first, first + 16), (16, 86_400)) == Kept("granted", 16)
    assert held(cache) == 8
    assert serve(cache, range(200, 232)) == 0
    assert found(cache, range(200, 232)) == 32
    assert held(cache) == 0
    assert idle(cache)


def test_a_purge_forgets_what_was_kept() -> None:
    cache = cache_of(16)
    keep(cache, range(8), (8, 60), session="s")
    cache.purge(b"")
    cache.check()
    assert held(cache) == 0
    assert cache.end_session(OPEN, b"", "s") is None


def test_what_is_purged_while_it_runs_is_not_kept() -> None:
    cache = cache_of(16)
    lease = prefill(cache, range(8))
    cache.purge(b"")
    assert cache.finish(lease, Keeping((Mark(8, 60),), "s")) == Kept("refused", 0)
    assert held(cache) == 0
    assert cache.end_session(OPEN, b"", "s") is None
    assert idle(cache)


def test_what_was_not_computed_is_not_kept() -> None:
    cache = cache_of(16)
    lease = cache.acquire(bytearray(pack(range(16))), b"")
    compute(lease, 8)
    assert cache.finish(lease, Keeping((Mark(12, 60),))) == Kept("partial", 8)
    lease = cache.acquire(bytearray(pack(range(100, 116))), b"")
    assert cache.finish(lease, Keeping((Mark(12, 60),))) == Kept("refused", 0)
    cache.check()


def test_without_a_cache_nothing_is_kept() -> None:
    cache = PrefixCache(17, 4, enabled=False, keep=1.0)
    assert keep(cache, range(8), (8, 60)) == Kept("refused", 0)


def test_who_marks_nothing_is_told_nothing() -> None:
    assert keep(cache_of(16), range(8)) is None


def test_a_kept_leaf_that_a_step_in_flight_reads_is_not_evicted() -> None:
    cache = cache_of(8)
    keep(cache, range(8), (8, 30))
    step = cache.begin_step()
    keep(cache, range(100, 108), (8, 20))
    assert cache.evict(ALL) == 2
    assert found(cache, range(100, 108)) == 8
    cache.end_step(step)
    assert cache.evict(ALL) == 2


# Tenants


def test_keeping_never_costs_another_tenant_a_page() -> None:
    """Whose pages go is a matter of shares; only which of them is the tenant's own to say."""
    lost = []
    for seconds in (0, 60):
        cache = cache_of(16)
        cache.set_terms({"a": Terms(guaranteed=0.25), "b": Terms(guaranteed=0.25)})
        lease = prefill(cache, range(32), b"a", tenant="a")
        cache.finish(lease, Keeping((Mark(32, seconds),) if seconds else ()))
        serve(cache, range(100, 132), b"b", tenant="b")
        serve(cache, range(200, 216), b"b", tenant="b")
        cache.check()
        lost.append((found(cache, range(32), b"a"), found(cache, range(200, 216), b"b")))
    assert lost[0] == lost[1]


def test_a_tenants_budget_is_a_part_of_its_own_maximum() -> None:
    cache = cache_of(16, keep=0.5)
    cache.set_terms({"a": Terms(maximum=0.5), "b": Terms(maximum=0.5, keep=0.125)})
    assert keep(cache, range(32), (32, 60), namespace=b"a", tenant="a") == Kept("partial", 16)
    assert keep(cache, range(32), (32, 60), namespace=b"b", tenant="b") == Kept("partial", 4)
    assert (held(cache, "a"), held(cache, "b")) == (4, 1)


def test_a_budget_that_shrinks_takes_nothing_back_and_grants_nothing_new() -> None:
    cache = cache_of(16)
    keep(cache, range(16), (16, 60))
    cache.set_terms({OPEN: Terms(keep=0.125)})
    assert held(cache) == 4
    assert keep(cache, range(16), (16, 90)) == Kept("granted", 16)
    assert keep(cache, range(100, 104), (4, 60)) == Kept("refused", 0)


def test_a_public_prefix_is_kept_at_nobodys_cost() -> None:
    cache = cache_of(16, keep=0.125)
    cache.set_public([pack(range(8))])
    assert keep(cache, range(16), (16, 60), namespace=b"a", tenant="a") == Kept("granted", 16)
    assert held(cache, "a") == 2
    assert keep(cache, range(16), (6, 60), namespace=b"b", tenant="b") == Kept("granted", 6)
    assert held(cache, "b") == 0
    assert cache.accounts.public.kept.total(0) == 2


# Conversations that end


def test_what_a_conversation_alone_had_goes_first_when_it_ends() -> None:
    cache = cache_of(32)
    serve(cache, [*range(8), *range(100, 108)])
    tick(cache)
    keep(cache, [*range(8), *range(50, 60)], session="s")
    assert cache.end_session(OPEN, b"", "s") == 3
    cache.check()
    prompts = [*range(8), *range(100, 108)], [*range(8), *range(50, 60)]
    assert evict_one_by_one(cache, *prompts)[:3] == [1, 1, 1]
    assert found(cache, prompts[0]) < 16


def test_a_last_turn_ends_the_conversation() -> None:
    cache = cache_of(32)
    keep(cache, range(8), session="s")
    keep(cache, range(16), (None, 60), session="s", last=True)
    assert cache.end_session(OPEN, b"", "s") is None
    assert held(cache) == 0
    tick(cache)
    serve(cache, range(100, 108))
    assert evict_one_by_one(cache, range(16), range(100, 108)) == [0, 0, 0, 0, 1, 1]


def test_a_conversation_that_nobody_knows_cannot_end() -> None:
    cache = cache_of(32)
    keep(cache, range(8), session="s")
    assert cache.end_session(OPEN, b"", "t") is None
    assert cache.end_session("a", b"", "s") is None
    assert cache.end_session(OPEN, b"a", "s") is None
    assert cache.end_session(OPEN, b"", "s") == 2
    assert cache.end_session(OPEN, b"", "s") is None


def test_what_was_there_before_a_conversation_is_not_let_go_of() -> None:
    cache = cache_of(32)
    serve(cache, range(8))
    keep(cache, range(16), session="s")
    keep(cache, range(24), session="s")
    assert cache.end_session(OPEN, b"", "s") == 4
    cache.check()
    assert [end for end, _ in nodes(cache)] == [8, 24]


def test_what_is_kept_for_longer_than_the_conversation_is_not_let_go_of() -> None:
    cache = cache_of(32)
    keep(cache, range(16), (8, 3600), (16, 300), session="s")
    assert cache.end_session(OPEN, b"", "s") == 2
    assert held(cache) == 2
    cache.check()


def test_a_conversation_that_runs_is_not_let_go_of() -> None:
    cache = cache_of(32)
    keep(cache, range(8), session="s")
    with prefill(cache, range(12)):
        assert cache.end_session(OPEN, b"", "s") == 0
        cache.check()
    assert idle(cache)


def test_who_comes_back_all_the_same_is_as_everybody_else_again() -> None:
    cache = cache_of(32)
    keep(cache, range(8), session="s", last=True)
    tick(cache)
    serve(cache, range(100, 108))
    tick(cache)
    serve(cache, [*range(8), 9])
    cache.check()
    assert evict_one_by_one(cache, range(8), range(100, 108))[:2] == [1, 1]


def test_whoever_computes_again_what_was_let_go_of_keeps_it() -> None:
    cache = cache_of(32)
    lease = cache.acquire(bytearray(pack(range(8))), b"")
    keep(cache, range(8), session="s", last=True)
    compute(lease, 8)
    lease.release()
    cache.check()
    tick(cache)
    serve(cache, range(100, 108))
    assert evict_one_by_one(cache, range(8), range(100, 108))[:2] == [0, 0]
    assert idle(cache)


def test_of_very_many_conversations_the_oldest_are_forgotten() -> None:
    from radixserve.cache.sessions import MOST

    cache = cache_of(8)
    for number in range(MOST + 5):
        keep_session(cache, f"s{number}")
    sessions = cache.accounts.of(OPEN).sessions
    assert sessions is not None
    assert len(sessions) == MOST
    assert cache.end_session(OPEN, b"", "s4") is None
    assert cache.end_session(OPEN, b"", "s5") is not None
    cache.check()


def keep_session(cache: PrefixCache, session: str) -> None:
    cache.finish(prefill(cache, range(4)), Keeping((), session))


def test_a_conversation_whose_pages_have_gone_ends_where_it_parted_from_others() -> None:
    cache = cache_of(32)
    serve(cache, [*range(8), *range(100, 108)])
    tick(cache)
    tick(cache)
    keep(cache, [*range(8), *range(50, 58)], session="s")
    tick(cache)
    serve(cache, [*range(8), *range(100, 108)])
    cache.evict(2)
    cache.check()
    assert found(cache, [*range(8), *range(50, 58)]) == 8
    assert cache.end_session(OPEN, b"", "s") == 0


# Parts


def test_pages_are_counted_by_when_they_are_over() -> None:
    kept = KeptPages()
    assert not kept
    kept.move(5, 0, term(0, 10))
    kept.move(3, 0, term(0, 20))
    assert (kept.total(0), kept.total(9)) == (8, 8)
    assert kept.by_end() == {10: 5, 20: 3}
    kept.move(2, term(0, 20), term(5, 20))
    assert kept.by_end() == {10: 5, 20: 1, 25: 2}
    assert kept.total(10) == 3
    kept.move(5, term(0, 10), 0)
    assert (kept.total(10), kept.total(25)) == (3, 0)


def test_a_place_on_a_path_is_found_and_a_seam_is_made_there() -> None:
    cache = cache_of(16)
    with prefill(cache, range(16)) as lease:
        assert node_at(cache.tree, lease.anchor, 16) is lease.anchor
        assert node_at(cache.tree, lease.anchor, 8).end == 8
        assert [node.end for node in walk(cache.tree.roots[b""])] == [0, 8, 16]
        cache.tree.join(node_at(cache.tree, lease.anchor, 8))
        assert isinstance(lease.anchor.parent, Root)


# What is counted


def test_times_that_are_over_are_counted_once_and_hits_that_begin_them_anew_too() -> None:
    cache = cache_of(16)
    counts = cache.accounts.keeps
    keep(cache, range(8), (8, 60))
    assert counts == KeepCounts()
    cache.time = 50
    serve(cache, [*range(8), 50])
    assert (counts.refreshed, counts.expired) == (1, 0)
    cache.time = 110
    serve(cache, [*range(8), 50])
    cache.evict(ALL)
    assert (counts.refreshed, counts.expired, held(cache)) == (1, 2, 0)


def test_why_something_is_not_kept_is_counted_once_a_request() -> None:
    cache = cache_of(16, keep=0.25)
    assert keep(cache, range(32), (24, 60), (32, 60)) == Kept("partial", 16)
    lease = cache.acquire(bytearray(pack(range(16))), b"")
    assert cache.finish(lease, Keeping((Mark(20, 60),))) == Kept("partial", 12)
    lease = cache.reserve(pack(range(16)), b"", 0, keep=False)
    assert lease is not None
    assert cache.finish(lease, Keeping((Mark(8, 60),))) == Kept("refused", 0)
    assert cache.accounts.keeps.refused == {"budget": 1, "unfinished": 1, "uncached": 1}


def test_a_last_page_that_a_fork_has_too_is_not_kept() -> None:
    cache = cache_of(16)
    lease = prefill(cache, range(6))
    with lease.fork(bytearray(lease.tokens)):
        assert cache.finish(lease, Keeping((Mark(6, 60),))) == Kept("partial", 4)
    assert cache.accounts.keeps.refused == {"shared": 1}
    assert idle(cache)
