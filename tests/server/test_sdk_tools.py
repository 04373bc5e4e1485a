"""OpenAI's own client reads tool calls and reasoning, over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from tests.server.asking import USER
from tests.server.fake import MODEL
from tests.server.openai_client import Weather, sdk
from tests.text.parsing.samples import RUN, SAMPLES, THREE, TOOLS


def arguments(stream: openai.Stream[Any]) -> Iterator[str]:
    for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            yield call.function.arguments


def read(calls: list[Any] | None) -> list[tuple[str, Any]]:
    assert calls is not None
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


@pytest.mark.parametrize("name", ["hermes three", "qwen3 coder", "mistral named"])
def test_the_sdk_accumulates_three_calls(name: str):
    sample = SAMPLES[name]
    asked: dict[str, Any] = {"model": MODEL, "messages": USER, "tools": TOOLS}
    with sdk(sample.text, sample.tools) as (client, _):
        whole = client.chat.completions.create(**asked).choices[0]
        with client.chat.completions.stream(**asked) as helper:
            streamed = helper.get_final_completion().choices[0]
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls"
        assert read(choice.message.tool_calls) == THREE
        assert len({call.id for call in choice.message.tool_calls or []}) == 3


def test_the_sdk_reads_reasoning_under_both_names():
    sample = SAMPLES["thought and called"]
    with sdk(sample.text, sample.tools, sample.style) as (client, _):
        answer = client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS)
        message: Any = answer.choices[0].message
        assert message.reasoning == message.reasoning_content == sample.reasoning
        assert answer.usage is not None
        assert answer.usage.completion_tokens_details is not None
        assert answer.usage.completion_tokens_details.reasoning_tokens


def test_the_sdk_sends_a_call_and_its_result_back():
    sample = SAMPLES["hermes"]
    with sdk(sample.text, sample.tools) as (client, frontend):
        message = client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS)
        said: Any = message.choices[0].message
        result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "21 degrees"}
        again: Any = [*USER, said, result]
        client.chat.completions.create(model=MODEL, messages=again, tools=TOOLS)
        assert len(frontend.requests) == 2


class Verdict(pydantic.BaseModel):
    warm: bool


def test_the_sdk_parses_the_calls_of_strict_tools_and_the_form_of_what_ends_them():
    tools = [openai.pydantic_function_tool(Weather, name="get_weather")]
    with sdk(SAMPLES["hermes"].text, "hermes") as (client, frontend):
        asked: dict[str, Any] = {"model": MODEL, "messages": USER, "tools": tools}
        answer = client.chat.completions.parse(**asked, response_format=Verdict)
        frontend.answer = '{"warm": true}'
        end = client.chat.completions.parse(**asked, response_format=Verdict)
    [call] = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Weather(city="Rome", days=3)
    assert end.choices[0].message.parsed == Verdict(warm=True)
    grammars = [request.sampling.grammar for request in frontend.requests]
    assert all(each is not None and "@form" in each.frame for each in grammars)


def test_the_sdk_raises_over_a_failure_inside_a_call():
    sample = SAMPLES["hermes"]
    with sdk(sample.text, sample.tools) as (client, frontend):
        frontend.fail_after = len(sample.text) - 20
        pieces: list[str] = []
        stream = client.chat.completions.create(
            model=MODEL, messages=USER, tools=TOOLS, stream=True
        )
        with pytest.raises(openai.APIError, match="It broke"):
            pieces.extend(arguments(stream))
        assert "".join(pieces)
        assert RUN not in "".join(pieces)
