"""OpenAI's own client speaks to the Responses API, over a real socket."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseReasoningItem

from tests.server.fake import MODEL
from tests.server.openai_client import Weather, sdk
from tests.server.responses.told import TOOL
from tests.text.parsing.samples import SAMPLES, TOOLS

FLAT: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]


def test_a_response_is_read_kept_and_gone_on_from():
    with sdk("Hello!", "none") as (client, frontend):
        first = client.responses.create(model=MODEL, input="Hi", instructions="Be good.")
        assert (first.output_text, first.status) == ("Hello!", "completed")
        assert first.usage is not None
        assert first.usage.output_tokens == 6
        again = client.responses.create(
            model=MODEL, input="Hi", instructions="Be good.", previous_response_id=first.id
        )
        assert client.responses.retrieve(again.id).output_text == "Hello!"
        items = list(client.responses.input_items.list(again.id))
        assert [item.type for item in items] == ["message"]
        assert client.responses.cancel(again.id).status == "completed"
        counted = client.responses.input_tokens.count(
            model=MODEL, input="Hi", instructions="Be good."
        )
        assert counted.input_tokens == first.usage.input_tokens
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first.id)
        assert len(frontend.requests) == 2


def test_the_stream_helper_accumulates_text_reasoning_and_calls():
    sample = SAMPLES["thought and called"]
    with sdk(sample.text, sample.tools, sample.style) as (client, _):
        with client.responses.stream(model=MODEL, input="Hi", tools=FLAT) as helper:
            kinds = [event.type for event in helper]
            final = helper.get_final_response()
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        [thought] = [each for each in final.output if isinstance(each, ResponseReasoningItem)]
        assert thought.content is not None
        assert thought.content[0].text == sample.reasoning
        calls = [each for each in final.output if isinstance(each, ResponseFunctionToolCall)]
        read = [(call.name, json.loads(call.arguments)) for call in calls]
        assert read == sample.calls
        whole = client.responses.create(model=MODEL, input="Hi", tools=FLAT)
        assert [each.type for each in whole.output] == [each.type for each in final.output]


def test_an_output_that_is_sent_back_with_results_is_taken():
    sample = SAMPLES["thought and called"]
    with sdk(sample.text, sample.tools, sample.style) as (client, frontend):
        first = client.responses.create(model=MODEL, input="Hi", tools=FLAT)
        again: Any = [{"role": "user", "content": "Hi"}, *first.output]
        again += [
            {"type": "function_call_output", "call_id": each.call_id, "output": "21"}
            for each in first.output
            if isinstance(each, ResponseFunctionToolCall)
        ]
        client.responses.create(model=MODEL, input=again, tools=FLAT, store=False)
        assert len(frontend.requests) == 2


def test_an_answer_is_parsed_into_a_model():
    with sdk('{"city": "Rome", "days": 3}', "none") as (client, frontend):
        parsed = client.responses.parse(model=MODEL, input="Hi", text_format=Weather)
        assert parsed.output_parsed == Weather(city="Rome", days=3)
        with client.responses.stream(model=MODEL, input="Hi", text_format=Weather) as helper:
            assert helper.get_final_response().output_parsed == Weather(city="Rome", days=3)
        assert all(request.sampling.grammar is not None for request in frontend.requests)


def test_a_refusal_names_the_field_and_a_failure_raises():
    with sdk("Hello!", "none") as (client, frontend):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model=MODEL, input=[{"type": "computer_call"}])  # type: ignore[list-item]
        assert refused.value.param == "input.0.type"
        frontend.fail_after = 3
        stream = client.responses.create(model=MODEL, input="Hi", stream=True)
        said: list[str] = []
        with pytest.raises(openai.APIError, match="It broke"):
            said.extend(
                event.delta for event in stream if event.type == "response.output_text.delta"
            )
        assert "".join(said) == "Hel"


def test_tools_that_only_agents_of_openai_have_are_no_hindrance():
    with sdk("Hello!", "hermes") as (client, _):
        raw = client.responses.with_raw_response.create(
            model=MODEL,
            input="Hi",
            tools=[{"type": "web_search"}, {"type": "custom", "name": "patch"}, TOOL],  # type: ignore[list-item]
            tool_choice="auto",
            include=["reasoning.encrypted_content"],
            store=False,
            prompt_cache_key="session",
        )
        assert "tools.custom, tools.web_search" in raw.headers["x-radixserve-ignored"]
        assert raw.parse().output_text == "Hello!"
