"""Tools, calls and reasoning as chat templates take them."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve.errors import InvalidRequestError
from radixserve.text.chat_template import ChatTemplate
from tests.text import tiny
from tests.text.tiny import HERMES

AS_TEXT = HERMES.replace("call.function.arguments | tojson", "'' + call.function.arguments")
AS_IT_IS = HERMES.replace("call.function.arguments | tojson", "call.function.arguments")
AS_TAGS = HERMES.replace(
    "{{ call.function.arguments | tojson }}",
    "{% for key, value in call.function.arguments | items %}{{ key }}={{ value }}{% endfor %}",
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def history(arguments: object, **fields: object) -> list[dict[str, Any]]:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call], **fields},
        {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
    ]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {})


def test_a_template_is_asked_whether_it_tells_of_tools():
    assert template(HERMES).takes_tools
    assert not template(tiny.CHATML).takes_tools
    assert not template("{{ messages[0].content }}{{ tools | length }}").takes_tools


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (HERMES, '[f {"city": "Rome"}]'),
        (AS_TEXT, '[f {"city":"Rome"}]'),
        (AS_IT_IS, '[f {"city":"Rome"}]'),
        (AS_TAGS, "[f city=Rome]"),
    ],
    ids=["object", "text", "as it is", "tags"],
)
def test_arguments_take_the_form_that_the_template_takes(source: str, shown: str):
    text = template(source).render(history('{"city":"Rome"}'), tools=[TOOL])
    assert text.endswith(f"<user>Hi<assistant>{shown}<tool>21 degrees")


def test_arguments_that_a_client_sends_as_an_object_are_taken_too():
    for source in (HERMES, AS_TEXT, AS_IT_IS):
        assert '[f {"city": "Rome"}]' in template(source).render(history({"city": "Rome"}))


def test_broken_arguments_are_refused_in_any_form():
    for source in (HERMES, AS_TEXT):
        for broken in ("{", "[" * 100_000):
            with pytest.raises(InvalidRequestError) as caught:
                template(source).render(history(broken))
            assert caught.value.param == "messages.1.tool_calls.0.function.arguments"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_reaches_the_template_under_either_name(name: str):
    for source in (HERMES, HERMES.replace("reasoning_content", "reasoning")):
        text = template(source).render(history("{}", **{name: "Hm."}))
        assert "<assistant>(Hm.)[f {}]" in text
