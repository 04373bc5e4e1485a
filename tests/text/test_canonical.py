"""Canonical forms: off unless asked for, told when they change something, careful with text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixserve.errors import ConfigError
from radixserve.text.canonical import Canonical

ALL = Canonical.of("tools, json,volatile")


def tool(name: str, **schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def system(text: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": text}]


def stripped(text: str) -> str:
    [message], _, _ = Canonical.of("volatile").applied(system(text), [])
    return str(message["content"])


def test_nothing_is_on_by_default():
    messages, tools = system("Current time: 12:30"), [tool("b"), tool("a")]
    assert Canonical().applied(messages, tools) == (messages, tools, [])
    assert Canonical.of("") == Canonical()


def test_tools_are_sorted_by_name():
    tools = [tool("b"), tool("a")]
    _, found, changed = Canonical.of("tools").applied([], tools)
    assert found == tools[::-1]
    assert changed == ["tools"]


def test_keys_are_sorted_in_tools_and_in_arguments_however_they_are_sent():
    tools = [tool("f", type="object", properties={"b": {}, "a": {}})]
    calls = [
        {"function": {"name": "f", "arguments": '{"b": 1, "a": [{"d": 1, "c": "é"}]}'}},
        {"function": {"name": "f", "arguments": {"b": 1, "a": 2}}},
    ]
    messages = [{"role": "assistant", "content": None, "tool_calls": calls}]
    [message], [found], changed = Canonical.of("json").applied(messages, tools)
    assert changed == ["json"]
    assert list(found["function"]["parameters"]["properties"]) == ["a", "b"]
    text, value = (call["function"]["arguments"] for call in message["tool_calls"])
    assert text == '{"a": [{"c": "é", "d": 1}], "b": 1}'
    assert list(value) == ["a", "b"]
    assert calls[0]["function"]["arguments"].startswith('{"b"'), "what was sent is left alone"


def test_what_is_in_form_already_is_neither_changed_nor_told():
    calls = [{"function": {"name": "f", "arguments": '{"a":1,  "b":2}'}}]
    messages = [{"role": "assistant", "content": "", "tool_calls": calls}, *system("Be kind.")]
    tools = [{"type": "function", "function": {"name": "a", "description": "A.", "parameters": {}}}]
    found, kept, changed = ALL.applied(messages, tools)
    assert (found, kept, changed) == (messages, tools, [])


@pytest.mark.parametrize(
    "arguments", ['{"b": 1, "a"', "", None, "[" * 100_000, '{"b": NaN}', 3, '"text"']
)
def test_arguments_that_are_no_object_are_the_templates_to_judge(arguments: Any):
    messages = [{"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}]
    assert ALL.applied(messages, []) == (messages, [], [])


@pytest.mark.parametrize("calls", [3, [3], [{"function": 3}], {}])
def test_calls_of_another_shape_are_left_alone(calls: Any):
    messages = [{"role": "assistant", "tool_calls": calls}]
    assert ALL.applied(messages, []) == (messages, [], [])


@pytest.mark.parametrize(
    "line",
    [
        "Current time: 2026-11-30T12:04:17Z",
        "The current date and time is Monday, 30 November 2026, 12:04 (UTC).",
        "Current date: 30.11.2026",
        "- Today's date: 2026-11-30",
        "Today’s date is November 30, 2026",
        "current time (UTC): 12:04",
        "Today is Monday, November 30, 2026.",
        "Now: 2026-11-30 12:04:17",
        "Date: 2026-11-30",
        "Request ID: 0d4f6c1e-9a50-4a5e-8a41-9e58fb5f0b4c",
        "session_id: 0d4f6c1e9a504a5e",
        "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c3;",
    ],
)
def test_a_line_that_is_another_one_in_every_request_is_left_out(line: str):
    assert stripped(f"You help.\n{line}\nBe brief.") == "You help.\nBe brief."
    assert stripped(line) == ""


@pytest.mark.parametrize(
    "line",
    [
        "Current time limit: 30 minutes per call, as of 2024-01-01",
        "The current time is shown in the top bar.",
        "Ask for the date: it must be before 2026-11-30",
        "Today is a holiday.",
        "Date: the day of the flight, like 2026-11-30, which the user names",
        "Timestamp: ISO 8601",
        "Session id: ask the user for it",
        "If the current time is after 15:00, say so.",
        "Current time: " + "very long " * 20 + "12:00",
    ],
)
def test_a_sentence_about_time_stays(line: str):
    assert stripped(f"You help.\n{line}\nBe brief.") == f"You help.\n{line}\nBe brief."


def test_only_what_the_operator_says_is_stripped():
    told = {"role": "user", "content": "Current time: 12:30"}
    found, _, changed = ALL.applied([told], [])
    assert found == [told]
    assert changed == []


def test_parts_of_a_message_are_stripped_one_by_one():
    image = {"type": "image_url", "image_url": {}}
    parts = [{"type": "text", "text": "Now: 12:30\nHi."}, image, {"type": "text", "text": "Hi."}]
    [message], _, changed = ALL.applied(system(parts), [])
    assert [part.get("text") for part in message["content"]] == ["Hi.", None, "Hi."]
    assert message["content"][1] is image
    assert changed == ["volatile"]


def test_long_texts_take_no_long_time():
    text = "current time is " * 100_000 + "\n" + " " * 1_000_000 + "Date:" * 100_000
    assert stripped(text) == text


def test_values_that_are_nested_too_deeply_are_left_alone():
    deep: Any = {}
    for _ in range(100_000):
        deep = {"b": deep}
    tools = [tool("f", properties=deep)]
    assert Canonical.of("json").applied([], tools)[2] == []


def test_a_form_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="no form 'order'; there are tools, json, volatile"):
        Canonical.of("tools,order")


@pytest.mark.parametrize("names", ["tools,,json", "tools,", ",", " , json"])
def test_a_form_without_a_name_is_refused(names: str):
    with pytest.raises(ConfigError, match="lists a form without a name"):
        Canonical.of(names)


@pytest.mark.parametrize("names", ["", "  "])
def test_no_form_is_none(names: str):
    assert Canonical.of(names).forms == frozenset()


def test_two_orders_of_the_same_come_to_the_same():
    one = [tool("f", b=1, a={"d": 1, "c": 2}), tool("e")]
    other = [tool("e"), {"function": {"parameters": {"a": {"c": 2, "d": 1}, "b": 1}, "name": "f"}}]
    other[1]["type"] = "function"
    found = [json.dumps(ALL.applied([], tools)[1]) for tools in (one, other)]
    assert found[0] == found[1]
