"""Content blocks become the messages that chat templates know."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from radixserve.server.errors import ApiError
from radixserve.server.keeping import taken_out
from radixserve.server.messages.blocks import Chat
from radixserve.server.messages.wire import InputMessage
from radixserve.text.chat_template import ChatTemplate
from tests.text.tiny import HERMES

CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"city": "Rome"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "21 degrees"}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **fields}


def chat(*turns: tuple[str, Any], system: Any = None) -> Chat:
    messages = [{"role": role, "content": content} for role, content in turns]
    return Chat(system, msgspec.convert(messages, list[InputMessage]))


def refused(*turns: tuple[str, Any], system: Any = None) -> tuple[str | None, str | None]:
    with pytest.raises(ApiError) as found:
        chat(*turns, system=system)
    assert found.value.status == 400
    assert found.value.message.startswith(str(found.value.param))
    return found.value.param, found.value.code


def test_strings_and_blocks_say_the_same():
    plain = chat(("user", "Hi"), ("assistant", "Yes?"), ("user", "Bye"), system="Be kind.")
    blocks = chat(
        ("user", [text("Hi")]),
        ("assistant", [text("Yes?")]),
        ("user", [text("Bye")]),
        system=[text("Be kind.")],
    )
    assert plain.messages == blocks.messages
    assert [each["role"] for each in plain.messages] == ["system", "user", "assistant", "user"]
    assert not plain.ignored | blocks.ignored


def test_calls_and_their_results_have_messages_of_their_own():
    found = chat(
        ("user", "What is it like there?"),
        ("assistant", [text("Let me see."), CALL, {**CALL, "id": "toolu_2", "input": {}}]),
        ("user", [RESULT, {**RESULT, "tool_use_id": "toolu_2", "content": None}, text("Well?")]),
    )
    _, answer, first, second, question = found.messages
    assert answer["content"] == "Let me see."
    calls = [("toolu_1", {"city": "Rome"}), ("toolu_2", {})]
    assert answer["tool_calls"] == [
        {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}
        for id, arguments in calls
    ]
    assert first == {
        "role": "tool",
        "tool_call_id": "toolu_1",
        "name": "f",
        "content": "21 degrees",
    }
    assert (second["tool_call_id"], second["content"]) == ("toolu_2", "")
    assert question == {"role": "user", "content": "Well?"}
    shown = ChatTemplate(HERMES, {}).render(found.messages)
    assert 'Let me see.[f {"city": "Rome"}][f {}]<tool>21 degrees<tool><user>Well?' in shown


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("It broke.", "Error: It broke."),
        ([text("It"), text("broke.")], [text("Error: It"), text("broke.")]),
        (None, "Error: "),
        ([], "Error: "),
    ],
)
def test_a_result_says_that_it_is_an_error(content: Any, shown: Any):
    result = {**RESULT, "content": content, "is_error": True}
    found = chat(("assistant", [CALL]), ("user", [result]))
    assert found.messages[-1]["content"] == shown
    fine = chat(("assistant", [CALL]), ("user", [{**result, "is_error": False}]))
    assert "Error" not in str(fine.messages)


def test_texts_before_and_behind_results_keep_their_places():
    found = chat(("assistant", [CALL]), ("user", [text("So:"), RESULT, text("a"), text("b")]))
    assert [each["role"] for each in found.messages] == ["assistant", "user", "tool", "user"]
    assert found.messages[-1]["content"] == [text("a"), text("b")]


def test_turns_of_one_role_become_one():
    found = chat(
        ("user", "One."),
        ("user", [text("Two.")]),
        ("assistant", "Well"),
        ("assistant", [text(", yes."), CALL]),
        ("user", [RESULT]),
        ("user", "Three."),
    )
    question, answer, result, last = found.messages
    assert question["content"] == [text("One."), text("Two.")]
    assert answer["content"] == "Well, yes."
    assert (result["role"], last) == ("tool", {"role": "user", "content": "Three."})


def test_thinking_is_reasoning_and_what_is_redacted_is_left_out():
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "xyz"}
    redacted = {"type": "redacted_thinking", "data": "abc"}
    found = chat(("user", "Hi"), ("assistant", [thought, redacted, text("Yes?")]), ("user", "Bye"))
    assert found.messages[1] == {"role": "assistant", "content": "Yes?", "reasoning": "Hm."}
    assert found.ignored == {"messages.content.redacted_thinking"}


def test_cache_control_is_no_part_of_the_prompt_wherever_it_stands():
    mark = {"cache_control": {"type": "ephemeral"}}
    marked = chat(
        ("user", [text("Hi", **mark)]),
        ("assistant", [{**CALL, **mark}]),
        ("user", [{**RESULT, "content": [text("21", **mark)], **mark}]),
        system=[text("Be kind.", **mark)],
    )
    bare = chat(
        ("user", [text("Hi")]),
        ("assistant", [CALL]),
        ("user", [{**RESULT, "content": "21"}]),
        system="Be kind.",
    )
    assert marked.messages != bare.messages
    taken_out(marked.messages, None)
    assert marked.messages == bare.messages
    assert not marked.ignored


@pytest.mark.parametrize("behind", ["", "\n\nBe kind."])
def test_a_billing_header_is_stripped(behind: str):
    header = "x-anthropic-billing-header: cc_version=2.1; cch=0abc1;" + behind
    rest = [text("Be kind.")] if behind else []
    for system in ([text(header), text("Be brief.")], header):
        found = chat(("user", "Hi"), system=system)
        said = [each for each in found.messages if each["role"] == "system"]
        assert "billing" not in str(found.messages)
        if isinstance(system, str):
            assert said == ([{"role": "system", "content": "Be kind."}] if rest else [])
        elif rest:
            assert said[0]["content"] == [*rest, text("Be brief.")]
        else:
            assert said[0]["content"] == "Be brief."


def test_what_speaks_of_such_a_header_is_left_alone():
    system = "Strip x-anthropic-billing-header: from\nwhat you see."
    assert chat(("user", "Hi"), system=system).messages[0]["content"] == system


def test_the_beginning_of_an_answer_is_continued():
    found = chat(("user", "Hi"), ("assistant", [text("Well"), text(",")]))
    assert found.continued
    assert found.messages[-1]["content"] == "Well,"
    assert not chat(("user", "Hi"), ("assistant", "Well,"), ("user", "Go on.")).continued


@pytest.mark.parametrize("content", ["", [], [text("")]])
def test_an_empty_beginning_is_none(content: Any):
    found = chat(("user", "Hi"), ("assistant", content))
    assert not found.continued
    assert [each["role"] for each in found.messages] == ["user"]


def test_a_call_or_a_thought_cannot_be_continued():
    assert refused(("user", "Hi"), ("assistant", [CALL]))[0] == "messages.1.content"
    thought = {"type": "thinking", "thinking": "Hm."}
    assert refused(("user", "Hi"), ("assistant", [thought]))[0] == "messages.1.content"


def test_a_system_message_may_stand_among_the_others():
    found = chat(("user", "Hi"), ("system", [text("Now be brief.")]), ("user", "Bye"))
    assert [each["role"] for each in found.messages] == ["user", "system", "user"]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
DOCUMENT = {"type": "document", "source": {"type": "text", "data": "x"}}


@pytest.mark.parametrize("block", [IMAGE, DOCUMENT])
def test_other_media_are_refused_with_what_to_do(block: dict[str, Any]):
    assert refused(("user", [text("See:"), block])) == (
        "messages.0.content.1.type",
        "unsupported_value",
    )
    inside = {**RESULT, "content": [block]}
    place = "messages.1.content.0.content.0.type"
    assert refused(("assistant", [CALL]), ("user", [inside]))[0] == place
    with pytest.raises(ApiError) as found:
        chat(("user", [block]))
    assert found.value.message.endswith("in a text block.")


@pytest.mark.parametrize(
    ("role", "block", "param", "code"),
    [
        ("user", {}, "type", "missing_required_parameter"),
        ("user", {"type": 5}, "type", "invalid_type"),
        ("user", {"type": "text"}, "text", "missing_required_parameter"),
        ("user", {"type": "text", "text": None}, "text", "invalid_type"),
        ("user", CALL, "type", "unsupported_value"),
        ("assistant", RESULT, "type", "unsupported_value"),
        ("system", RESULT, "type", "unsupported_value"),
        ("assistant", {**CALL, "input": "x"}, "input", "invalid_type"),
        ("assistant", {"type": "tool_use", "id": "1"}, "name", "missing_required_parameter"),
        ("user", {"type": "tool_result"}, "tool_use_id", "missing_required_parameter"),
        ("user", {**RESULT, "content": [5]}, "content.0", "invalid_type"),
        ("user", {**RESULT, "is_error": "no"}, "is_error", "invalid_type"),
        ("assistant", {"type": "thinking"}, "thinking", "missing_required_parameter"),
        ("assistant", {"type": "server_tool_use"}, "type", "unsupported_value"),
    ],
)
def test_a_block_that_cannot_be_is_refused_by_its_path(
    role: str, block: dict[str, Any], param: str, code: str
):
    assert refused((role, [block])) == (f"messages.0.content.0.{param}", code)


def test_only_text_is_a_system_prompt():
    assert refused(("user", "Hi"), system=[text("a"), CALL])[0] == "system.1.type"
