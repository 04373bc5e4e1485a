"""The trail finds the request with the longest head in common, and keeps within its bounds."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from radixserve.explain.bodies import ENTRY, Bodies, decoded
from radixserve.explain.trail import LEAST, Record, Trail, common_tokens
from radixserve.tokens import count, pack


def record(id: str, tokens: list[int], *, tenant: str = "", called: str = "", **of: Any) -> Record:
    return Record(
        id=id,
        tenant=tenant,
        namespace=of.get("namespace", b""),
        mode="on",
        epoch=0,
        began=0.0,
        length=len(tokens),
        body={},
        tokens=pack(tokens),
        called=called,
    )


def body(*contents: str) -> bytes:
    messages = [{"role": "user", "content": content} for content in contents]
    return json.dumps({"model": "m", "messages": messages, "temperature": 1}).encode()


def test_the_longest_common_head_is_found_as_by_looking_at_all():
    chance = random.Random(7)
    trail = Trail(total=2**30)
    known: list[list[int]] = []
    for number in range(300):
        asked = [chance.randrange(3) for _ in range(chance.randrange(1, 12))]
        expected = max((_common(each, asked) for each in known), default=0)
        alike = trail.alike("", b"", pack(asked))
        assert (0 if alike is None else alike.common) == expected
        new = record(str(number), asked)
        extends = None
        if alike is not None and alike.common >= alike.record.length:
            extends = alike.record
        trail.add(new, b"{}", extends=extends)
        known.append(asked)
    for number, asked in enumerate(known):
        kept = trail.find("", str(number))
        assert kept is not None
        assert kept.prompt == pack(asked)


def _common(one: list[int], other: list[int]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


def test_the_last_ones_are_at_hand_behind_the_nearest():
    trail = Trail()
    assert trail.nearest("", b"", pack([1])) == []
    for number in range(8):
        trail.add(record(str(number), [1, number, 5]), b"{}")
    found = trail.nearest("", b"", pack([1, 2, 3]))
    assert [each.record.id for each in found] == ["2", "7", "6", "5", "4"]
    assert [each.common for each in found] == [2, 1, 1, 1, 1]
    found = trail.nearest("", b"", pack([9]))
    assert [(each.record.id, each.common) for each in found] == [(id, 0) for id in "7654"]
    trail.wipe("reset", 1.0)
    assert trail.nearest("", b"", pack([1, 2, 3])) == []


def test_the_answer_counts_as_what_was_asked():
    trail = Trail()
    first = record("a", [1, 2, 3])
    trail.add(first, b"{}")
    trail.end(first, "done", pack([4, 5]))
    assert common_tokens(first, pack([1, 2, 3, 4, 9])) == 4
    assert common_tokens(first, pack([1, 2, 3, 4, 5, 6])) == 5
    assert common_tokens(first, pack([1, 2, 9, 4, 5])) == 2


def test_tenants_and_namespaces_are_never_compared():
    trail = Trail()
    trail.add(record("a", [1, 2, 3], tenant="one", namespace=b"x"), body("secret"))
    assert trail.alike("one", b"y", pack([1, 2, 3])) is None
    assert trail.alike("two", b"x", pack([1, 2, 3])) is None
    assert trail.find("two", "a") is None
    assert trail.alike("one", b"x", pack([1, 2, 3])) is not None


def test_what_others_ask_takes_no_room_from_a_tenant():
    trail = Trail(lambda: 2, total=4 * LEAST)
    trail.add(record("mine", [1, 2, 3], tenant="one"), body("mine"))
    for number in range(2000):
        trail.add(record(str(number), [number] * 100, tenant="two"), body("x" * 500, str(number)))
    assert trail.find("one", "mine") is not None
    assert trail.find("two", "0") is None
    assert trail.find("two", "1999") is not None
    assert trail.size <= 2 * trail.share


def test_the_oldest_go_first_and_nothing_is_left_of_them():
    trail = Trail(total=LEAST)
    for number in range(500):
        trail.add(record(str(number), [number] * 1000), body(f"{number}"))
        assert trail.size <= trail.share
    assert trail.find("", "0") is None
    assert trail.alike("", b"", pack([0])) is None
    assert trail.alike("", b"", pack([499])) is not None


def test_one_is_found_by_its_other_name_for_as_long_as_it_is_kept():
    trail = Trail(total=LEAST)
    first, second = (record(each, [1, 2], called="mine") for each in ("a", "b"))
    other = record("c", [1, 2], tenant="other", called="mine")
    for each in (first, second, other):
        trail.add(each, b"{}")
    assert trail.find("", "mine") is second
    assert trail.find("other", "mine") is other
    assert trail.find("nobody", "mine") is None
    trail.remove(first)
    assert trail.find("", "mine") is second
    trail.remove(second)
    assert trail.find("", "mine") is None
    trail.remove(other)
    assert trail.size == 0


def test_an_id_goes_before_a_name_that_a_client_chose():
    trail = Trail()
    first, second = record("a", [1]), record("b", [2], called="a")
    trail.add(first, b"{}")
    trail.add(second, b"{}")
    assert trail.find("", "a") is first


def test_one_that_is_larger_than_all_the_room_is_not_kept():
    trail = Trail(total=LEAST)
    trail.add(record("large", [1] * LEAST), b"{}")
    assert trail.find("", "large") is None
    assert trail.size == 0


def test_a_conversation_takes_the_room_of_its_last_turn():
    trail = Trail(total=2**30)
    turns, last = 40, None
    contents: list[str] = []
    for turn in range(turns):
        contents.append(f"{turn} " + "word " * 1000)
        new = record(str(turn), list(range(1000 * (turn + 1))))
        trail.add(new, body(*contents), extends=last)
        last = new
    tokens, text = 4000 * turns, sum(map(len, contents))
    assert trail.size < 1.2 * (tokens + text)
    assert trail.find("", "3").prompt == pack(range(4000))  # type: ignore[union-attr]


def test_what_is_wiped_leaves_no_text_and_is_known_again():
    trail = Trail()
    trail.add(record("a", list(range(100)), tenant="t", namespace=b"n"), body("secret"))
    trail.add(record("b", list(range(100)), tenant="t", namespace=b"m"), body("other"))
    trail.wipe("purged", 5.0, tenant="t", namespace=b"n")
    assert trail.find("t", "a") is None
    assert trail.find("t", "b") is not None
    assert trail.wiped("t", b"n", pack(range(50))) == ("purged", 5.0)
    assert trail.wiped("t", b"m", pack(range(50))) is None
    assert trail.wiped("t", b"n", pack([9, 9])) is None
    trail.wipe("reset", 6.0)
    assert trail.find("t", "b") is None
    assert trail.wiped("t", b"m", pack(range(50))) == ("reset", 6.0)
    trail.forget("t")
    assert trail.wiped("t", b"n", pack(range(50))) is None


def test_a_request_that_was_refused_leaves_nothing():
    trail = Trail()
    refused = record("a", [1, 2, 3])
    trail.add(refused, body("x"))
    trail.remove(refused)
    trail.remove(refused)
    assert trail.size == 0
    assert trail.alike("", b"", pack([1, 2, 3])) is None
    trail.end(refused, "done", pack([4]))
    assert trail.size == 0


def test_equal_messages_are_kept_once_and_go_with_the_last_that_has_them():
    bodies = Bodies()
    first, second = bodies.keep(body("same", "one")), bodies.keep(body("same", "two"))
    assert bodies.size == sum(len(each) + ENTRY for each in bodies._parts)
    assert decoded(first)["messages"][0] == {"role": "user", "content": "same"}
    assert "temperature" not in decoded(first)
    size = bodies.size
    bodies.drop(first)
    assert bodies.size < size
    assert decoded(second)["messages"][1]["content"] == "two"
    bodies.drop(second)
    assert bodies.size == 0


def test_what_is_no_body_is_not_kept():
    bodies = Bodies()
    for broken in (b"", b"[1]", b'{"messages": [1,', b"\xff", b"3"):
        assert bodies.keep(broken) == {}
    assert bodies.size == 0


@pytest.mark.parametrize("value", [b"[1e999]", b"1e999", b'["\xff"]', b"9" * 5000])
def test_of_a_body_that_cannot_be_read_there_is_nothing(value: bytes):
    kept = Bodies().keep(b'{"prompt": "x", "messages": ' + value + b"}")
    assert decoded(kept) == {}


def test_lengths_are_in_tokens():
    assert record("a", [1, 2, 3]).length == count(pack([1, 2, 3]))
