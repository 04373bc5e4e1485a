"""Conversations that end let go of what they alone had."""

from __future__ import annotations

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.sessions import MOST
from radixserve.cache.terms import Keeping
from radixserve.tenant import OPEN
from radixserve.tokens import pack
from tests.cache.serving import (
    cache_of,
    compute,
    evict_one_by_one,
    found,
    held,
    idle,
    keep,
    nodes,
    prefill,
    serve,
    tick,
)


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
