"""What a client sends as input becomes the messages that a chat template knows."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.server.responses.items import Script, client_path, read_items, resolved
from tests.server.asking import error_of, refused
from tests.server.responses.told import ask

USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "21"}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}
CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


def said(text: str, **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "content": [part], "id": "m", **more}


def messages(given: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    script = Script(instructions)
    items, _ = read_items(given)
    script.extend(resolved(items, {}), lambda place: f"input.{place}")
    return script.messages


def test_a_text_is_a_message_of_the_user():
    assert messages("Hi") == [USER]
    assert messages([USER]) == [USER]
    assert messages([{"type": "message", **USER, "id": "x", "status": "completed"}]) == [USER]
    parts = [{"type": "input_text", "text": "Hi"}]
    assert messages([{"role": "user", "content": parts}]) == [USER]
    several = messages([{"role": "user", "content": parts * 2}])
    assert several[0]["content"] == [{"type": "text", "text": "Hi"}] * 2


def test_instructions_and_developers_are_one_message_of_the_system():
    developer = {"role": "developer", "content": "Be kind."}
    system = {"role": "system", "content": "Be short."}
    expected = [{"role": "system", "content": "Be good.\n\nBe kind.\n\nBe short."}, USER]
    assert messages([developer, system, USER], "Be good.") == expected
    assert messages([USER], "Be good.") == [{"role": "system", "content": "Be good."}, USER]
    assert messages([USER], "") == [USER]
    later = messages([developer, USER, system])
    assert [each["role"] for each in later] == ["system", "user", "system"]


def test_what_one_answer_consists_of_is_one_message():
    [_, answer, result] = messages([USER, THOUGHT, said("So:"), CALL, OUTPUT])
    assert answer == {
        "role": "assistant",
        "reasoning": "Hm.",
        "content": "So:",
        "tool_calls": [CALLED],
    }
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "21"}
    mixed = messages([USER, said("One "), CALL, said("two")])
    assert mixed[1]["content"] == "One two"
    other = {**CALL, "call_id": "c2"}
    both = messages([USER, CALL, other, OUTPUT, {**OUTPUT, "call_id": "c2"}])
    assert [each["role"] for each in both] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in both[1]["tool_calls"]] == ["c1", "c2"]


def test_two_answers_in_a_row_stay_two():
    first, second = said("One.", phase="commentary"), said("Two.", phase="final_answer")
    told = messages([first, second, USER])
    assert [each["content"] for each in told] == ["One.", "Two.", "Hi"]


def test_outputs_have_parts_too():
    parts = {**OUTPUT, "output": [{"type": "input_text", "text": "21"}]}
    assert messages([USER, CALL, parts])[-1]["content"] == "21"


def test_a_call_that_was_cut_is_not_shown():
    cut = {**CALL, "arguments": '{"a', "status": "incomplete"}
    assert messages([USER, said("So:"), cut])[1] == {"role": "assistant", "content": "So:"}
    whole = {**CALL, "status": "incomplete"}
    assert messages([USER, whole])[1]["tool_calls"] == [CALLED]


def test_keys_that_say_something_and_are_not_heard_are_listed():
    _, ignored = read_items([said("Hi", phase="commentary"), {**THOUGHT, "encrypted_content": "x"}])
    assert sorted(ignored) == ["input.encrypted_content", "input.phase"]
    assert read_items([{**CALL, "id": "fc_1", "status": "completed", "namespace": None}])[1] == []


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        ({"role": "robot", "content": "x"}, "input.1.role", None),
        ({"role": "user"}, "input.1.content", "missing_required_parameter"),
        ({"role": "user", "content": 1}, "input.1.content", "invalid_type"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
            "input.1.content.0.type",
            "unsupported_value",
        ),
        (
            {"role": "user", "content": [{"type": "input_text"}]},
            "input.1.content.0.text",
            "missing_required_parameter",
        ),
        ({"type": "computer_call"}, "input.1.type", "unsupported_value"),
        ({}, "input.1.type", None),
        ({"type": "function_call", "call_id": "c"}, "input.1.name", "missing_required_parameter"),
        (OUTPUT, "input.1.call_id", "invalid_value"),
    ],
)
def test_an_item_that_cannot_be_is_named_by_its_path(
    client: TestClient, item: dict[str, Any], param: str, code: str | None
):
    told = refused(ask(client, [USER, item]))
    assert told[0] == param
    assert code is None or told[1] == code


def test_an_item_that_is_no_object_is_refused(client: TestClient):
    assert refused(ask(client, [USER, "Hi"]))[0] == "input.1"
    assert refused(ask(client, 5))[0] == "input"
    assert refused(ask(client, []))[0] == "input"


def test_a_reference_to_nothing_is_not_found(client: TestClient):
    for id in ("msg_1", "msg_" + "0" * 33):
        error = error_of(ask(client, [{"type": "item_reference", "id": id}]), 404)
        assert (error["param"], error["code"]) == ("input.0.id", "item_not_found")


def test_the_longest_path_that_is_known_is_replaced():
    paths = {"messages": "input", "messages.1": "input.4", "messages.1.tool_calls.0": "input.5"}
    assert client_path("messages.1.tool_calls.0.name", paths) == "input.5.name"
    assert client_path("messages.1.content", paths) == "input.4.content"
    assert client_path("messages.2.content", paths) == "input.2.content"
    assert client_path("temperature", paths) == "temperature"
