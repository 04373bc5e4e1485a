"""The order of documents follows what was sent before, and forgets what was evicted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from radixserve.rag.order import Sent, SentOrders


def arranged(orders: SentOrders, names: str, **settings: int) -> str:
    """``names``, a letter each in the order of their rank, as they should be sent."""
    return "".join(names[each] for each in orders.arrange(names, [1] * len(names), **settings))


def told(*sequences: str) -> SentOrders:
    """Orders that sent these, each answered before the next one."""
    orders = SentOrders()
    for each in sequences:
        answer(orders, orders.send(each))
    return orders


def answer(orders: SentOrders, sent: Sent) -> None:
    """All that was expected was reused."""
    orders.confirm(sent, len(sent.expected))


def test_without_a_past_the_order_is_that_of_the_ranks():
    assert arranged(SentOrders(), "cab") == "cab"


def test_the_longest_path_comes_first_and_the_others_by_rank():
    orders = told("abcd", "abef")
    assert arranged(orders, "xfba") == "abxf"
    assert arranged(orders, "fxeba") == "abefx"


def test_the_path_that_saves_most_wins_and_not_the_one_with_most_documents():
    orders = told("ab", "c")
    assert orders.arrange("abc", [1, 1, 3]) == [2, 0, 1]
    assert orders.arrange("abc", [1, 1, 1]) == [0, 1, 2]


def test_equal_paths_are_told_apart_by_rank():
    orders = told("ab", "ba", "cd")
    assert arranged(orders, "bax") == "bax"
    assert arranged(orders, "abx") == "abx"
    assert arranged(orders, "cab")[:2] == "ab"


def test_every_permutation_of_the_same_documents_is_sent_in_one_order():
    orders = told("dbca")
    for each in itertools.permutations("abcd"):
        assert arranged(orders, "".join(each)) == "dbca"


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_no_document_ends_up_further_from_its_rank_than_allowed(shift: int):
    rng = random.Random(shift)
    orders = SentOrders()
    for _ in range(200):
        names = rng.sample("abcdefgh", 5)
        found = orders.arrange(names, [1] * 5, max_shift=shift)
        assert sorted(found) == list(range(5))
        assert max(abs(place - rank) for place, rank in enumerate(found)) <= shift
        answer(orders, orders.send([names[each] for each in found]))
    assert len(orders) > 5


def test_a_shift_that_is_allowed_is_used():
    orders = told("ba")
    assert arranged(orders, "ab", max_shift=0) == "ab"
    assert arranged(orders, "ab", max_shift=1) == "ba"
    assert arranged(orders, "acb", max_shift=1) == "acb"


def test_what_is_not_answered_yet_is_followed_but_not_expected():
    orders = SentOrders()
    first = orders.send("ab")
    assert arranged(orders, "ba") == "ab"
    second = orders.send("ab")
    assert second.expected == ()
    orders.confirm(second, 0)  # the first one is still computing
    assert arranged(orders, "ba") == "ab"
    orders.confirm(first, 0)
    assert len(orders.send("ab").expected) == 2


def test_what_was_evicted_is_forgotten_with_all_that_is_older():
    orders = told("old", "abcd", "abef", "new")
    sent = orders.send("abcd")
    assert len(sent.expected) == 4
    orders.confirm(sent, 2)  # c was evicted, and so was what was last used before it
    assert arranged(orders, "dlo") == "dlo"
    assert arranged(orders, "dcba") == "abcd", "it has just been computed again"
    assert arranged(orders, "febaw") == "abefw", "used later than what was evicted"
    assert arranged(orders, "wen") == "new"


def test_what_was_sent_before_is_seen_in_any_place():
    orders = told("abc")
    assert orders.seen("cxa") == (True, False, True)


def test_only_so_much_is_remembered_and_the_oldest_goes_first():
    orders = SentOrders(most=40)
    for number in range(200):
        answer(orders, orders.send([f"{number}a", f"{number}b", "common"]))
        assert len(orders) <= 40
    assert orders.send(["0a"]).expected == ()
    assert len(orders.send(["199a", "199b", "common"]).expected) == 3


def test_a_sequence_longer_than_the_memory_does_no_harm():
    orders = SentOrders(most=8)
    sent = orders.send(range(100))
    assert len(orders) <= 100
    orders.confirm(sent, 100)
    assert sorted(orders.arrange(range(100), [1] * 100)) == list(range(100))


def consistent(orders: SentOrders) -> None:
    """Counts agree with the trie, and no child is younger than its parent."""
    nodes = [orders._root]
    found: list[str] = []
    while nodes:
        node = nodes.pop()
        for key, child in node.children.items():
            assert node is orders._root or child.used <= node.used
            found.append(str(key))
            nodes.append(child)
    assert len(found) == len(orders)
    assert {key: found.count(str(key)) for key in orders._places} == dict(orders._places)


@pytest.mark.parametrize("seed", range(5))
def test_random_lives_stay_consistent(seed: int):
    rng = random.Random(seed)
    orders = SentOrders(most=60)
    waiting: list[Sent] = []
    for _ in range(400):
        names: Sequence[str] = rng.sample("abcdefghij", rng.randint(1, 6))
        found = orders.arrange(names, [rng.randint(1, 9) for _ in names])
        assert sorted(found) == list(range(len(names)))
        waiting.append(orders.send([names[each] for each in found]))
        if rng.random() < 0.8:
            sent = waiting.pop(rng.randrange(len(waiting)))
            orders.confirm(sent, rng.randint(0, len(sent.expected)))
        consistent(orders)
