"""Somebody who says when they come back is waited for, and no longer."""

from __future__ import annotations

import pytest

from radixserve.cache.eviction import SLACK
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.terms import Keeping, Mark
from tests.cache.serving import found, prefill

STEP = 0.1


class Server:
    """A cache whose pages have one token, and a clock."""

    def __init__(self, pages: int = 64):
        self.cache = PrefixCache(pages + 1, 1, keep=1.0)

    def at(self, seconds: float) -> None:
        self.cache.time = seconds
        self.cache.end_step(self.cache.begin_step())

    def ask(
        self, *tokens: int, back: int | None = None, session: str = "", marks: tuple[Mark, ...] = ()
    ) -> None:
        lease = prefill(self.cache, tokens)
        self.cache.finish(lease, Keeping(marks, session, next_in=back), lease.reused)
        self.cache.check()

    def lost(self, *prompts: tuple[int, ...]) -> list[int]:
        """Which of the prompts, by place, loses each next page."""
        gone = []
        while self.cache.evict(1):
            self.cache.check()
            left = [found(self.cache, each) for each in prompts]
            gone += [place for place, each in enumerate(left) if each < len(prompts[place])]
            prompts = tuple(each[:count] for each, count in zip(prompts, left, strict=True))
        return gone


def test_who_comes_back_last_goes_first() -> None:
    server = Server()
    server.ask(1, 2, back=20)
    server.ask(3, 4, back=60)
    server.ask(5, 6, back=40)
    assert server.lost((1, 2), (3, 4), (5, 6)) == [1, 1, 2, 2, 0, 0]


@pytest.mark.parametrize(("unused", "first"), [(20, 0), (30, 1)])
def test_what_nothing_is_known_of_stays_unused_for_as_long_again(unused: int, first: int) -> None:
    """Of a prompt that was not used for 20 s, another 30 s are expected; of one that was not for
    30 s, another 40."""
    server = Server()
    server.at(100)
    server.ask(1)
    server.at(100 + unused)
    server.ask(2, back=35)
    assert server.lost((2,), (1,))[0] == first


@pytest.mark.parametrize(("late", "first"), [(SLACK - 1, 1), (SLACK, 0)])
def test_who_is_late_is_not_waited_for(late: int, first: int) -> None:
    """Not waited for any more, what is older goes by its age."""
    server = Server()
    server.at(10)
    server.ask(1, back=5)
    server.at(20)
    server.ask(2)
    server.at(10 + 5 + late)
    assert server.lost((1,), (2,))[0] == first


def test_all_who_are_late_go_by_age_whoever_is_most_so() -> None:
    server = Server()
    server.at(10)
    server.ask(1, back=60)
    server.at(20)
    server.ask(2)
    server.at(30)
    server.ask(3, back=5)
    server.at(10 + 60 + SLACK)
    assert server.lost((1,), (2,), (3,)) == [0, 1, 2]


def test_who_has_come_back_is_awaited_no_more() -> None:
    server = Server()
    server.ask(1, 2, back=3600)
    server.at(50)
    server.ask(3)
    server.at(51)
    server.ask(1, 2, 4)
    assert server.lost((1, 2, 4), (3,)) == [1, 0, 0, 0]


def test_what_others_go_on_from_is_not_awaited_with_it() -> None:
    server = Server()
    server.ask(1, 2, 3)
    server.ask(1, 2, 4, back=3600)
    assert server.lost((1, 2, 3), (1, 2, 4)) == [1, 0, 0, 1, 0, 1]


def test_what_was_there_before_a_conversation_is_not_awaited_with_it() -> None:
    server = Server()
    server.ask(1, 2)
    server.ask(1, 2, 3, session="s", back=3600)
    server.ask(5, back=1800)
    # The second turn found all of the first one, which is its own.
    server.ask(1, 2, 3, 4, session="s", back=3600)
    assert server.lost((1, 2, 3, 4), (5,)) == [0, 0, 1, 0, 0]


def test_without_a_conversation_all_that_it_alone_has_is_awaited() -> None:
    server = Server()
    server.ask(1, 2, back=3600)
    server.ask(5, back=1800)
    server.ask(1, 2, 3, back=3600)
    assert server.lost((1, 2, 3), (5,)) == [0, 0, 0, 1]


def test_of_a_shared_front_the_sooner_return_counts() -> None:
    server = Server()
    server.ask(1, 2, 3, back=3600)
    server.ask(1, 2, 4, back=60)
    server.ask(5, back=1800)
    # The front is as old as the younger of both, and goes by age.
    assert server.lost((1, 2, 3), (1, 2, 4), (5,)) == [0, 2, 1, 0, 1, 0, 1]


def test_what_is_kept_is_kept_whoever_is_awaited() -> None:
    server = Server()
    server.ask(1, 2, back=3600, marks=(Mark(None, 60),))
    server.ask(5, back=1)
    assert server.lost((1, 2), (5,)) == [1, 0, 0]


def test_of_two_who_are_done_and_awaited_the_one_who_is_done_goes_first() -> None:
    server = Server()
    server.ask(1, session="s")
    server.ask(2, back=86_400)
    assert server.cache.end_session("", b"", "s") == 1
    assert server.lost((2,), (1,)) == [1, 0]


def test_what_is_purged_is_awaited_by_nobody() -> None:
    server = Server()
    server.ask(1, 2, session="s", back=10)
    server.cache.purge(b"")
    server.cache.check()
    assert server.cache.pool.free == 64


def test_a_step_in_flight_keeps_what_it_reads() -> None:
    server = Server()
    step = server.cache.begin_step()
    server.ask(1, back=3600)
    assert server.cache.evict(1) == 0
    server.cache.end_step(step)
    assert server.cache.evict(1) == 1
