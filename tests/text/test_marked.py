from __future__ import annotations

from typing import Any

import pytest

from radixserve.errors import InvalidRequestError
from radixserve.text.chat_template import ChatTemplate
from radixserve.text.marked import Spot, marked_ends, moved

PLAIN = (
    "{% for tool in tools or [] %}<{{ tool.function.name }}>{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %};{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TRIMMED = PLAIN.replace("m.content }}", "m.content | trim }}")
NO_NEIGHBOURS = "{% if messages | length != 3 %}{{ raise_exception('three') }}{% endif %}" + PLAIN
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]},
    {"role": "assistant", "content": "Three "},
]


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def marked(source: str, spots: list[Spot], messages: Any = MESSAGES, tools: Any = ()) -> list[str]:
    template = ChatTemplate(source, {})

    def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        return template.render(messages, tools=tools)

    text = render(messages, list(tools))
    return [text[:end] for end in marked_ends(render, text, messages, list(tools), spots)]


def test_the_end_of_a_message_is_the_end_of_what_it_says():
    spots = [Spot(message=0), Spot(message=1), Spot(message=2)]
    assert marked(PLAIN, spots) == [
        "[system]Be kind.",
        "[system]Be kind.;[user]One\nTwo",
        "[system]Be kind.;[user]One\nTwo;[assistant]Three ",
    ]


def test_so_is_that_of_a_part_of_it():
    assert marked(PLAIN, [Spot(message=1, part=0)]) == ["[system]Be kind.;[user]One"]


def test_what_a_template_leaves_out_is_not_counted():
    [found] = marked(TRIMMED, [Spot(message=2)])
    assert found == "[system]Be kind.;[user]One\nTwo;[assistant]Three"


def test_the_end_of_a_tool_is_what_comes_before_another_one():
    tools = [tool("alpha"), tool("beta")]
    first, second = marked(PLAIN, [Spot(tool=0), Spot(tool=1)], tools=tools)
    assert first == "<alpha><"
    assert second.startswith("<alpha><beta>")


def test_behind_a_call_the_chat_ends():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        *MESSAGES[:1],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "user", "content": "Then?"},
    ]
    [found] = marked(PLAIN, [Spot(message=1)], messages, [tool("f")])
    assert found.startswith("<f>[system]Be kind.;[assistant](f)")
    assert "Then" not in found


def test_a_spot_at_which_the_template_refuses_to_be_changed_is_no_place():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        *MESSAGES[:1],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        MESSAGES[0],
    ]
    assert marked(NO_NEIGHBOURS, [Spot(message=1)], messages) == [""]


def test_a_message_that_cannot_be_rendered_is_refused_as_ever():
    with pytest.raises(InvalidRequestError):
        marked(PLAIN, [], [{"role": "user", "content": 5}])


@pytest.mark.parametrize(("place", "end"), [(0, 1), (1, 2), (2, 2)])
def test_in_another_order_a_spot_is_behind_all_that_it_was_behind(place: int, end: int):
    before, after = [tool(each) for each in "bca"], [tool(each) for each in "abc"]
    assert moved(Spot(tool=place), before, after) == Spot(tool=end)


def test_in_the_same_order_a_spot_stays():
    tools = [tool(each) for each in "abc"]
    for spot in (Spot(tool=1), Spot(message=1, part=0)):
        assert moved(spot, tools, tools) == spot
    assert moved(Spot(tool=1), [], []) == Spot(tool=1), "of tools that the model is not told of"
