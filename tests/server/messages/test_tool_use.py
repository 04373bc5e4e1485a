"""Calls of tools as the Messages API tells them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from radixserve.server.dialect import Dialect
from radixserve.server.messages.request import asked
from radixserve.server.messages.wire import CountTokensRequest
from radixserve.text.parsing.parser import Formats
from tests.server.fake import saying
from tests.server.messages.asking import TOOLS, USER, message, told
from tests.text.parsing.samples import ROME, SAMPLES, THREE, Sample
from tests.text.parsing.samples import TOOLS as FUNCTIONS

USED = {
    name: each for name, each in SAMPLES.items() if not each.opened and each.tools != "none"
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sample", USED.values(), ids=USED.keys())
def test_each_family_is_told_in_blocks(sample: Sample, stream: bool):
    with saying(sample.text, sample.tools, sample.style) as (client, _):
        found = told(message(client, tools=TOOLS, max_tokens=5000, stream=stream))
    content = found["content"]
    calls = [each for each in content if each["type"] == "tool_use"]
    assert [(each["name"], each["input"]) for each in calls] == sample.calls
    assert all(each["caller"] == {"type": "direct"} for each in calls)
    assert len({each["id"] for each in calls}) == len(calls)
    texts = "".join(each["text"] for each in content if each["type"] == "text")
    assert texts == sample.content
    thoughts = [each for each in content if each["type"] == "thinking"]
    assert "".join(each["thinking"] for each in thoughts) == sample.reasoning
    assert all(each["signature"] for each in thoughts)
    assert found["stop_reason"] == ("tool_use" if calls else "end_turn")
    assert not any(a["type"] == b["type"] != "tool_use" for a, b in pairwise(content))


def test_ids_of_calls_are_anthropics_or_what_the_template_wants():
    for name, size, prefix in (("hermes", 30, "toolu_"), ("mistral named", 9, "")):
        with saying(SAMPLES[name].text, SAMPLES[name].tools) as (client, _):
            content = told(message(client, tools=TOOLS))["content"]
        calls = [each for each in content if each["type"] == "tool_use"]
        assert calls
        for each in calls:
            assert len(each["id"]) == size
            assert each["id"].startswith(prefix)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", range(1, len(SAMPLES["hermes with text"].text), 7))
def test_a_call_that_is_cut_is_told_as_far_as_it_came(stream: bool, size: int):
    sample = SAMPLES["hermes with text"]
    with saying(sample.text) as (client, _):
        response = message(client, tools=TOOLS, max_tokens=size, stream=stream)
        if not stream:
            found = told(response)
            assert found["stop_reason"] == "max_tokens"
            for each in found["content"]:
                if each["type"] == "tool_use":
                    assert isinstance(each["input"], dict)
            return
    assert response.text.endswith('data: {"type":"message_stop"}\n\n')
    assert '"stop_reason":"max_tokens"' in response.text


@pytest.mark.parametrize(
    ("arguments", "told_as"),
    [
        ('{"a": ', {"INVALID_JSON": '{"a": }'}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ('{"a": 1}', {"a": 1}),
    ],
)
def test_arguments_that_are_no_object_are_passed_on_as_they_are(
    arguments: str, told_as: dict[str, Any]
):
    said = f'<tool_call>{{"name": "run", "arguments": {arguments}}}</tool_call>'
    with saying(said) as (client, _):
        [call] = told(message(client, tools=TOOLS))["content"]
    assert (call["type"], call["input"]) == ("tool_use", told_as)


@pytest.mark.parametrize(
    ("choice", "markers"),
    [({"type": "auto"}, True), ({"type": "none"}, False), (None, True)],
)
def test_tools_may_be_left_to_the_model_or_forbidden(choice: Any, markers: bool):
    with saying(SAMPLES["hermes"].text) as (client, frontend):
        found = told(message(client, tools=TOOLS, tool_choice=choice))
        assert bool(frontend.requests[0].markers) == markers
    assert (found["stop_reason"] == "tool_use") == markers


def test_only_one_call_is_told_where_several_are_not_wanted():
    sample = SAMPLES["hermes three"]
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    for wanted, calls in ((None, len(THREE)), (choice, 1)):
        with saying(sample.text) as (client, _):
            response = message(client, tools=TOOLS, tool_choice=wanted, max_tokens=5000)
        content = told(response)["content"]
        assert len([each for each in content if each["type"] == "tool_use"]) == calls


@pytest.mark.parametrize(
    ("choice", "same", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "none"}, "none", None),
        ({"type": "any", "disable_parallel_tool_use": False}, "required", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "tool", "name": "run"}, {"type": "function", "function": {"name": "run"}}, None),
    ],
)
def test_choices_of_tools_are_those_of_chat(
    choice: dict[str, Any], same: Any, parallel: bool | None
):
    body = msgspec.json.encode({"messages": USER, "tools": TOOLS, "tool_choice": choice})
    fields = msgspec.json.decode(body, type=CountTokensRequest)
    wanted = asked(fields, Dialect(Formats(), "", takes_tools=True, passes_calls=True))
    assert (wanted.chat.tool_choice, wanted.chat.parallel_tool_calls) == (same, parallel)
    assert wanted.chat.tools == FUNCTIONS


def test_pieces_of_arguments_join_to_what_the_model_wrote():
    with saying(SAMPLES["hermes"].text) as (client, _):
        response = message(client, tools=TOOLS, stream=True)
    pieces = [
        json.loads(line.removeprefix("data: "))["delta"]["partial_json"]
        for line in response.text.splitlines()
        if "input_json_delta" in line
    ]
    assert "".join(pieces) == ROME
    assert len(pieces) > 5
