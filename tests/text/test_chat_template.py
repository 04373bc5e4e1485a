from __future__ import annotations

from typing import Any

import pytest

from radixserve.errors import InvalidRequestError, ModelError
from radixserve.text.chat_template import ChatTemplate
from tests.text import tiny

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
PARTS_ONLY = "{% for part in messages[0].content %}[{{ part.text }}]{% endfor %}"
BOTH = (
    "{% set content = messages[0].content %}"
    "{% if content is string %}{{ content }}"
    "{% else %}{% for part in content %}{{ part.text }}{% endfor %}{% endif %}"
)
STRICT = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('Start with the user!') }}{% endif %}"
    "{{ messages[0].content }}"
)


def user(content: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def text_parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text, "cache_control": "ephemeral"} for text in texts]


def template(source: str = tiny.CHATML) -> ChatTemplate:
    return ChatTemplate(source, SPECIALS)


def refusal(source: str, messages: list[dict[str, Any]], **settings: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        template(source).render(messages, **settings)
    return caught.value


def test_messages_become_the_prompt_of_the_next_answer() -> None:
    messages = [*user("hi"), {"role": "assistant", "content": "yes"}]
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes"
    subject = template()
    assert subject.render(messages) == f"{text}<|im_end|>\n<|im_start|>assistant\n"
    assert subject.render(messages, add_generation_prompt=False) == f"{text}<|im_end|>\n"
    continued = subject.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert continued == text


@pytest.mark.parametrize(
    ("source", "expected"),
    [("{{ messages[0].content }}", "a\nb"), (PARTS_ONLY, "[a][b]"), (BOTH, "ab")],
)
def test_text_parts_take_the_form_that_the_template_takes(source: str, expected: str) -> None:
    assert template(source).render(user(text_parts("a", "b"))) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [("{{ messages[0].content }}", "a"), (PARTS_ONLY, "[a]"), (BOTH, "a")],
)
def test_a_string_takes_the_form_that_the_template_takes(source: str, expected: str) -> None:
    assert template(source).render(user("a")) == expected


def test_bare_strings_among_the_parts_are_text() -> None:
    assert template("{{ messages[0].content }}").render(user(["a", *text_parts("b")])) == "a\nb"


@pytest.mark.parametrize("content", [None, []])
def test_no_content_is_empty_content(content: object) -> None:
    assert template("<{{ messages[0].content }}>").render(user(content)) == "<>"


def test_nulls_are_absent_to_a_template() -> None:
    source = "{{ 'tool_calls' in messages[0] }}"
    assert template(source).render([{**user("x")[0], "tool_calls": None}]) == "False"


def test_tool_arguments_reach_the_template_as_an_object() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"città": [1, 2]}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert template(source).render(messages) == '{"città": [1, 2]}'
    assert isinstance(call["function"], dict)
    assert call["function"]["arguments"] == '{"città": [1, 2]}'
    for arguments in (None, "", {}):
        call["function"] = {"name": "f", "arguments": arguments}
        assert template(source).render(messages) == "{}"


def test_templates_see_specials_tools_and_arguments_of_the_request() -> None:
    source = "{{ bos_token }}{{ tools is none }}{{ thinking }}{{ strftime_now('%Y') | length }}"
    rendered = template(source).render(user("x"), tools=[], template_kwargs={"thinking": True})
    assert rendered == "<s>TrueTrue4"


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ([*text_parts("ok"), {"type": "image_url", "image_url": {}}], "messages.0.content.1.type"),
        ([{"text": "no type"}], "messages.0.content.0.type"),
        ([7], "messages.0.content.0.type"),
        ([{"type": "text"}], "messages.0.content.0.text"),
        (7, "messages.0.content"),
    ],
)
def test_content_other_than_text_is_refused_by_its_place(content: object, param: str) -> None:
    assert refusal(tiny.CHATML, user(content)).param == param


@pytest.mark.parametrize(
    ("calls", "param"),
    [
        ([{"function": {"arguments": "{"}}], "messages.0.tool_calls.0.function.arguments"),
        ([{"function": None}], "messages.0.tool_calls.0.function"),
        (["f()"], "messages.0.tool_calls.0.function"),
    ],
)
def test_broken_tool_calls_are_refused_by_their_place(calls: list[object], param: str) -> None:
    messages = [{"role": "assistant", "content": "", "tool_calls": calls}]
    assert refusal(tiny.CHATML, messages).param == param


@pytest.mark.parametrize(
    ("source", "messages", "words"),
    [
        (STRICT, [{"role": "system", "content": "x"}], "Start with the user!"),
        (tiny.CHATML, [{"content": "no role"}], "role"),
        ("{{ messages[9].content.x }}", user("x"), "messages"),
        ("{{ messages[0].content + 1 }}", user("x"), "messages"),
        ("{{ messages.__class__.__mro__ }}", user("x"), "unsafe"),
    ],
)
def test_what_a_template_refuses_is_the_clients_error(
    source: str, messages: list[dict[str, Any]], words: str
) -> None:
    error = refusal(source, messages)
    assert error.param == "messages"
    assert words in error.message


def test_no_messages_are_refused() -> None:
    assert refusal(tiny.CHATML, []).param == "messages"
    assert refusal(tiny.CHATML, ["hello"]).param == "messages.0"  # type: ignore[list-item]


def test_settings_that_contradict_each_other_are_refused() -> None:
    error = refusal(tiny.CHATML, user("x"), continue_final_message=True)
    assert error.param == "continue_final_message"
    for name in ("chat_template", "messages", "tools", "conversations"):
        error = refusal(tiny.CHATML, user("x"), template_kwargs={name: "x"})
        assert error.param == f"chat_template_kwargs.{name}"


def test_a_template_that_does_not_compile_names_the_line() -> None:
    with pytest.raises(ModelError, match="line 2"):
        template("ok\n{% if %}")
