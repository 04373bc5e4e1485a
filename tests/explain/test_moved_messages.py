"""Messages that came, went, changed places, or are several in the other conversation."""

from __future__ import annotations

from radixserve.explain.divergence import diverge
from tests.explain.bodies import turn


def test_messages_that_came_went_or_changed_places():
    first, second, third = ("user", "One"), ("assistant", "Two"), ("user", "Three")
    for guess, earlier, later in (
        ("message_inserted", (first, second), (("system", "Be kind"), first, second)),
        ("message_removed", (first, second, third), (first, third)),
        ("message_order", (first, second, third), (first, third, second)),
    ):
        found = diverge(turn(*earlier), turn(*later))
        assert found is not None
        assert found.guess == guess
        assert found.pointer == f"/messages/{found.message}"
        assert found.message == (0 if guess == "message_inserted" else 1)


def test_a_short_message_that_is_said_again_has_not_moved():
    earlier = turn(("user", "Go on"), ("assistant", "Two"), ("user", "Go on"), ("assistant", "3"))
    later = turn(("user", "Do it"), ("assistant", "Two"), ("user", "Go on"), ("assistant", "3"))
    for ours, theirs in ((earlier, later), (later, earlier)):
        found = diverge(ours, theirs)
        assert found is not None
        assert (found.guess, found.pointer) == ("text", "/messages/0/content")


def test_messages_that_are_one_in_the_other_conversation():
    parts = turn(("user", "First this."), ("user", "Then that."), ("assistant", "Yes."))
    whole = turn(("user", "First this.\n\nThen that."), ("assistant", "Yes."))
    for guess, ours, theirs in (
        ("messages_merged", parts, whole),
        ("message_split", whole, parts),
    ):
        found = diverge(ours, theirs)
        assert found is not None
        assert (found.guess, found.pointer) == (guess, "/messages/0/content")
        assert found.character == len("First this.")


def test_messages_of_two_roles_are_not_one():
    earlier = turn(("system", "Be kind. Who are you?"), ("user", "Who are you?"))
    found = diverge(earlier, turn(("system", "Be kind."), ("user", "Who are you?")))
    assert found is not None
    assert found.guess == "text_removed"


def test_a_summary_in_place_of_what_was_said():
    said = [("user", "One?"), ("assistant", "Two."), ("user", "Three?"), ("assistant", "Four.")]
    head, last = ("system", "Be kind"), ("user", "Five?")
    found = diverge(turn(head, *said, last), turn(head, ("user", "They counted to four."), last))
    assert found is not None
    assert (found.guess, found.message) == ("history_summarized", 1)


def test_another_role():
    found = diverge(turn(("system", "Be kind")), turn(("user", "Be kind")))
    assert found is not None
    assert (found.guess, found.pointer, found.role) == ("role", "/messages/0/role", "user")


def test_reasoning_that_is_not_sent_back():
    said = {"role": "assistant", "content": "Yes.", "reasoning_content": "So it is."}
    found = diverge({"messages": [said]}, {"messages": [{**said, "reasoning_content": None}]})
    assert found is not None
    assert (found.guess, found.pointer) == (
        "reasoning_omitted",
        "/messages/0/reasoning_content",
    )
