"""``POST /v1/responses``: what is said, whole and streamed, in the words of the Responses API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.server.app import create_app
from radixserve.server.responses.wire import HARMLESS, ResponsesRequest
from radixserve.server.service import Settings
from radixserve.server.wire import ChatRequest
from tests.server.asking import refused
from tests.server.fake import MODEL, FakeFrontend, saying
from tests.server.responses.told import TOOL, ask, events, joined, kinds, text, without_ids
from tests.text.parsing.samples import SAMPLES, TOOLS

THOUGHT = "<think>\nOne.\n\nTwo.\n</think>\n\nHello!"
TEXT_EVENTS = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]


def test_a_text_is_answered_with_a_message(client: TestClient, frontend: FakeFrontend):
    response = ask(client, "Hi", model=MODEL, temperature=0.5, metadata={"who": "me"}).json()
    [item] = response["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [
        {"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}
    ]
    assert (response["object"], response["status"], response["model"]) == (
        "response",
        "completed",
        MODEL,
    )
    assert response["completed_at"] >= response["created_at"]
    assert (response["temperature"], response["metadata"]) == (0.5, {"who": "me"})
    assert response["error"] is response["incomplete_details"] is None
    prompt = frontend.requests[0].prompt
    tokens = len(prompt) // 4
    assert response["usage"] == {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": tokens},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens + 6,
    }
    again = ask(client, "Hi").json()["usage"]
    assert again["input_tokens_details"] == {"cached_tokens": tokens - 1, "cache_write_tokens": 1}
    kept = ask(client, "Hi", cache={"mode": "read-only"}).json()["usage"]
    assert kept["input_tokens_details"]["cache_write_tokens"] == 0


def test_a_stream_tells_of_the_same_in_the_order_of_the_protocol(client: TestClient):
    told = events(ask(client, stream=True, metadata={"who": "me"}))
    assert kinds(told) == ["created", "in_progress", *TEXT_EVENTS, "completed"]
    begun, done = told[0]["response"], told[-1]["response"]
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    [item] = done["output"]
    assert joined(told) == [{**item, "status": "in_progress"}]
    assert told[-2]["item"] == item
    assert text(done) == "Hello!"
    whole = ask(client, metadata={"who": "me"}).json()
    for response in (whole, done):
        for name in ("id", "created_at", "completed_at", "usage", "output"):
            del response[name]
    assert done == whole
    deltas = [each["delta"] for each in told if each["type"].endswith("text.delta")]
    assert len(deltas) == 6


@pytest.mark.parametrize("name", ["thought and called", "hermes with text", "hermes three"])
def test_reasoning_text_and_calls_are_items_of_their_own(name: str):
    sample = SAMPLES[name]
    with saying(sample.text, sample.tools, sample.style) as (client, _):
        whole = ask(client, tools=FLAT).json()
        told = events(ask(client, tools=FLAT, stream=True))
    done = told[-1]["response"]
    assert without_ids(done["output"]) == without_ids(whole["output"])
    assert joined(told) == [{**item, "status": "in_progress"} for item in done["output"]]
    calls = [each for each in whole["output"] if each["type"] == "function_call"]
    assert [(each["name"], json.loads(each["arguments"])) for each in calls] == sample.calls
    assert len({each["call_id"] for each in calls}) == len(calls)
    assert text(whole) == sample.content
    thoughts = [each for each in whole["output"] if each["type"] == "reasoning"]
    said = "".join(part["text"] for each in thoughts for part in each["content"])
    assert said == sample.reasoning
    assert all(each["status"] == "completed" for each in whole["output"])
    assert all(each["summary"] == [] for each in thoughts)
    assert bool(whole["usage"]["output_tokens_details"]["reasoning_tokens"]) == bool(thoughts)


def test_reasoning_and_arguments_have_events_of_their_own():
    sample = SAMPLES["thought and called"]
    with saying(sample.text, sample.tools, sample.style) as (client, _):
        told = kinds(events(ask(client, tools=FLAT, stream=True)))
    thought = [name.replace("output_text", "reasoning_text") for name in TEXT_EVENTS]
    assert told[2 : 2 + len(thought)] == thought
    called = ["function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert told[-4:-1] == called


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_was_cut_is_incomplete(client: TestClient, stream: bool):
    response = ask(client, max_output_tokens=3, stream=stream)
    told = events(response)[-1] if stream else {"response": response.json()}
    if stream:
        assert told["type"] == "response.incomplete"
    cut = told["response"]
    assert (cut["status"], cut["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert cut["completed_at"] is None
    assert (text(cut), cut["output"][0]["status"]) == ("Hel", "incomplete")
    assert cut["max_output_tokens"] == 3


def test_an_answer_without_a_word_is_an_empty_message():
    with saying("<think>\nOne.\n</think>", "none", "none") as (client, frontend):
        frontend.answer = " "
        frontend.tokenizer.chat_template_source = ""
        assert text(ask(client).json()) == " "
    with saying("<tool_call></tool_call>") as (client, _):
        response = ask(client, tools=FLAT).json()
        assert response["status"] == "completed"
        assert [item["type"] for item in response["output"]] == ["message"]


def test_logprobs_are_those_of_the_message():
    with saying(THOUGHT, "none", "think") as (client, _):
        fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
        whole = ask(client, **fields).json()
        told = events(ask(client, stream=True, **fields))
        done = told[-1]["response"]
        [part] = whole["output"][-1]["content"]
        assert "".join(each["token"] for each in part["logprobs"]).strip() == "Hello!"
        assert part["logprobs"][-1] == {
            "token": "!",
            "logprob": -0.5,
            "bytes": [33],
            "top_logprobs": [{"token": "?", "logprob": -9999.0, "bytes": [63]}],
        }
        assert done["output"][-1]["content"] == whole["output"][-1]["content"]
        assert joined(told)[-1]["content"] == whole["output"][-1]["content"]
        assert whole["top_logprobs"] == 1
        assert ask(client).json()["output"][-1]["content"][0]["logprobs"] == []


def test_a_form_reaches_the_engine(client: TestClient, frontend: FakeFrontend):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "pair", "schema": schema, "strict": True}
    response = ask(client, text={"format": form}).json()
    grammar = frontend.requests[0].sampling.grammar
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.text)) == ("json_schema", schema)
    assert response["text"]["format"] == {**form, "description": None}
    frontend.fault = "it is too odd"
    error = ask(client, text={"format": form}).json()["error"]
    assert (error["param"], error["code"]) == ("text.format", "invalid_json_schema")
    assert error["message"] == "Invalid schema for response_format 'pair': it is too odd."
    assert refused(ask(client, text={"format": {"type": "json_schema", "name": "x"}})) == (
        "text.format.schema",
        "missing_required_parameter",
    )
    assert refused(ask(client, text={"format": {"type": "xml"}}))[0] == "text.format.type"


def test_fields_reach_the_engine(client: TestClient, frontend: FakeFrontend):
    fields: dict[str, Any] = {
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 7,
        "seed": 5,
        "frequency_penalty": 0.5,
        "max_output_tokens": 4,
        "stop": ["lo"],
        "timeout": 3.0,
    }
    response = ask(client, **fields)
    assert "x-radixserve-ignored" not in response.headers
    request = frontend.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.25, 0.5, 7)
    assert (sampling.seed, sampling.frequency_penalty, sampling.max_tokens) == (5, 0.5, 4)
    assert (request.stop, request.timeout) == (("lo",), 3.0)


def test_what_has_no_effect_is_listed():
    with saying("Hello!") as (client, _):
        response = ask(
            client,
            service_tier="auto",
            include=["reasoning.encrypted_content"],
            text={"verbosity": "low"},
            reasoning={"summary": "auto", "effort": "low"},
            tools=[{"type": "web_search"}, {**TOOL, "defer_loading": True}],
        )
    assert response.headers["x-radixserve-ignored"].split(", ") == [
        "include.reasoning.encrypted_content",
        "reasoning.effort",
        "reasoning.summary",
        "service_tier",
        "text.verbosity",
        "tools.defer_loading",
        "tools.web_search",
    ]
    assert response.json()["tools"] == [TOOL]


def test_nothing_that_chat_honours_is_ignored(client: TestClient, frontend: FakeFrontend):
    handled = (
        set(ResponsesRequest.__struct_fields__) | set(ResponsesRequest.refused) | set(HARMLESS)
    )
    assert set(ChatRequest.__struct_fields__) <= handled
    assert refused(ask(client, guided_regex="a+")) == ("guided_regex", "unsupported_parameter")
    asked = ask(client, stream_options={"include_obfuscation": False}, stream=True)
    assert asked.headers["x-radixserve-ignored"] == "stream_options"
    assert ask(client, n=1, add_generation_prompt=True, guided_json=None).status_code == 200


def test_tools_are_repeated_with_all_their_keys():
    with saying("Hello!") as (client, _):
        [tool] = ask(client, tools=[{"type": "function", "name": "f"}]).json()["tools"]
    assert tool == {
        "type": "function",
        "name": "f",
        "description": None,
        "parameters": None,
        "strict": None,
    }


@pytest.mark.parametrize(
    ("fields", "param", "hint"),
    [
        ({"background": True}, "background", "Stream"),
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt", "input"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"messages": []}, "messages", "input"),
        ({"response_format": {"type": "text"}}, "response_format", "text.format"),
        ({"use_beam_search": True}, "use_beam_search", ""),
    ],
)
def test_what_would_change_the_answer_is_refused(
    client: TestClient, frontend: FakeFrontend, fields: dict[str, Any], param: str, hint: str
):
    response = ask(client, **fields)
    assert refused(response) == (param, "unsupported_parameter")
    assert hint in response.json()["error"]["message"]
    assert not frontend.requests
    assert ask(client, background=False, conversation=None).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 50}, "top_logprobs"),
        ({"reasoning": {"effort": "hard"}}, "reasoning.effort"),
        ({"reasoning": {"effort": 1}}, "reasoning.effort"),
        ({"metadata": {"k": "v" * 600}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"truncation": "some"}, "truncation"),
        ({"text": {"format": {"type": "text", "odd": 1}}}, "text.format"),
        ({"tools": [{"type": "file_search"}]}, "tools.0.type"),
        ({"tools": [{"name": "f"}]}, "tools.0.type"),
        ({"tools": [{"type": ["web_search"]}]}, "tools.0.type"),
        ({"tools": [{"type": "web_search"}, {"type": "function"}]}, "tools.1.name"),
        ({"tools": [{**TOOL, "parameters": {"type": "array"}}]}, "tools.0.parameters.type"),
        ({"tools": [{"type": "custom"}, TOOL, TOOL]}, "tools.2.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": None}, "input"),
        ({"model": 3}, "model"),
    ],
)
def test_a_wrong_field_is_named_as_the_client_calls_it(fields: dict[str, Any], param: str):
    with saying("Hello!") as (client, frontend):
        response = ask(client, **fields)
        assert refused(response)[0] == param
        assert not frontend.requests


def test_tokens_are_counted_without_an_answer(client: TestClient, frontend: FakeFrontend):
    path = "/v1/responses/input_tokens"
    fields = {"input": "Hi", "instructions": "Be good."}
    counted = client.post(path, json=fields).json()
    assert not frontend.requests
    asked = client.post("/v1/responses", json=fields).json()
    assert counted == {
        "input_tokens": asked["usage"]["input_tokens"],
        "object": "response.input_tokens",
    }
    longer = client.post(path, json={**fields, "previous_response_id": asked["id"]}).json()
    assert longer["input_tokens"] > counted["input_tokens"]
    assert refused(client.post(path, json={"input": 5}))[0] == "input"


def test_what_is_not_built_is_not_there(client: TestClient):
    assert client.post("/v1/responses/compact", json={"input": "Hi"}).status_code == 404


def test_an_unknown_model_and_a_prompt_that_is_too_long(client: TestClient):
    assert ask(client, model="x").status_code == 404
    assert refused(ask(client, "x" * 500)) == ("input", "context_length_exceeded")
    items = [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"at": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "x" * 500},
    ]
    response = ask(client, items, instructions="Be brief.")
    assert refused(response) == ("input", "context_length_exceeded")
    assert (
        "The longest messages are input.2 (tool, 500 characters), instructions (system, 9 "
        "characters), input.1 (assistant, 9 characters)."
    ) in response.json()["error"]["message"]
    many = [{"role": "user", "content": "x"}] * 300
    assert refused(ask(client, many)) == ("input", "context_length_exceeded")


@pytest.mark.parametrize("after", [0, 3])
def test_a_failure_is_an_error_or_an_event_and_an_end(frontend: FakeFrontend, after: int):
    frontend.fail_after = after
    settings = Settings(grace=0.0 if after else 60.0)
    with TestClient(create_app(frontend, settings=settings)) as client:
        assert ask(client).status_code == 500
        response = ask(client, stream=True)
        if not after:
            assert response.status_code == 500
            return
        told = events(response)
        error, last = told[-2:]
        assert (error["type"], error["code"]) == ("error", "answer_error")
        assert error["message"] == error["error"]["message"]
        assert "It broke" in error["message"]
        failed = last["response"]
        assert (last["type"], failed["status"]) == ("response.failed", "failed")
        assert failed["error"]["code"] == "server_error"
        assert (text(failed), failed["output"][0]["status"]) == ("Hel", "incomplete")
        assert client.get(f"/v1/responses/{failed['id']}").json() == failed


def test_secrets_of_a_failure_stay_here(frontend: FakeFrontend):
    frontend.die_after = 3
    with TestClient(create_app(frontend), raise_server_exceptions=False) as client:
        assert "secret" not in ask(client, stream=True).text


def test_what_is_in_the_body_besides_the_input_is_bounded(client: TestClient):
    values = ",".join("1" for _ in range(70_000))
    head = {"content-type": "application/json"}
    body = f'{{"input": "Hi", "odd": [{values}]}}'
    assert refused(client.post("/v1/responses", content=body, headers=head))[1] == "invalid_value"
    body = f'{{"input": "{values}"}}'
    response = client.post("/v1/responses", content=body, headers=head)
    assert refused(response) == ("input", "context_length_exceeded")
