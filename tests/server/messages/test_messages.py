"""Requests to the Messages API, and the answers in its shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from radixserve.engine.frontend import TextDelta
from radixserve.engine.messages import Usage
from radixserve.scheduling.grammar import Grammar
from radixserve.server.app import create_app
from radixserve.server.dialect import Dialect
from radixserve.server.messages.request import asked
from radixserve.server.messages.wire import CountTokensRequest
from radixserve.server.service import Settings
from radixserve.text.parsing.parser import Formats
from tests.server.fake import ANSWER, MODEL, FakeFrontend
from tests.server.messages.asking import (
    USER,
    counted,
    ignored,
    message,
    prompt_tokens,
    refused,
    told,
)
from tests.server.test_reasoning import THOUGHT, OpeningTokenizer
from tests.server.test_tools import saying
from tests.text.parsing.samples import ROME, SAMPLES, THREE, Sample
from tests.text.parsing.samples import TOOLS as FUNCTIONS

TOOLS = [
    {"name": each["function"]["name"], "input_schema": each["function"]["parameters"]}
    for each in FUNCTIONS
]
USED = {
    name: each for name, each in SAMPLES.items() if not each.opened and each.tools != "none"
}  # fmt: skip


def schema_of(schema: dict[str, Any]) -> dict[str, Any]:
    """A tool whose arguments have this schema."""
    return {"name": "f", "input_schema": schema}


def prompt_of(frontend: FakeFrontend) -> str:
    """The last prompt that came."""
    return bytes(frontend.requests[-1].prompt[3::4]).decode()


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_every_field_that_strict_clients_look_for(client: TestClient, stream: bool):
    found = told(message(client, stream=stream))
    usage = found.pop("usage")
    assert found == {
        "model": MODEL,
        "content": [{"type": "text", "text": ANSWER, "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
    }
    assert prompt_tokens(usage) == len("user: Hi\nassistant:")
    assert usage["output_tokens"] == len(ANSWER)
    assert set(usage["cache_creation"]) == {
        "ephemeral_5m_input_tokens",
        "ephemeral_1h_input_tokens",
    }


def test_a_system_prompt_comes_first(client: TestClient, frontend: FakeFrontend):
    message(client, system="Be kind.")
    assert prompt_of(frontend) == "system: Be kind.\nuser: Hi\nassistant:"


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
        for each in content:
            if each["type"] == "tool_use":
                assert len(each["id"]) == size
                assert each["id"].startswith(prefix)


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_comes_before_the_text_and_is_counted(stream: bool):
    with saying(THOUGHT, "none", "think") as (client, _):
        found = told(message(client, stream=stream))
    thinking, text = found["content"]
    assert thinking["type"] == "thinking"
    assert thinking["thinking"] == "One.\n\nTwo."
    assert thinking["signature"]
    assert text["text"] == "Hello!"
    tokens = found["usage"]["output_tokens_details"]["thinking_tokens"]
    assert tokens == len("\nOne.\n\nTwo.\n</think>")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "thinking", [{"type": "disabled"}, {"type": "adaptive", "display": "omitted"}]
)
def test_thinking_that_nobody_wants_to_see_is_not_shown(stream: bool, thinking: dict[str, Any]):
    with saying(THOUGHT, "none", "think") as (client, _):
        found = told(message(client, stream=stream, thinking=thinking))
    assert [each["type"] for each in found["content"]] == ["text"]
    assert found["usage"]["output_tokens_details"]["thinking_tokens"] > 0


@pytest.fixture
def opening() -> Iterator[tuple[TestClient, FakeFrontend]]:
    """A model that thinks unless it is told not to."""
    frontend = FakeFrontend("One.\n</think>\n\nTwo.", max_model_len=1000)
    frontend.tokenizer = OpeningTokenizer()
    app = create_app(frontend, settings=Settings(reasoning_parser="think"))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client, frontend


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"thinking": {"type": "disabled"}}, ("'enable_thinking': False", "'none'")),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, ("'enable_thinking': True",)),
        ({"thinking": {"type": "adaptive"}}, ("'enable_thinking': True",)),
        ({"output_config": {"effort": "high"}}, ("'enable_thinking': True", "'high'")),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
            ("'enable_thinking': False",),
        ),
    ],
)
def test_thinking_is_switched_in_the_template(
    opening: tuple[TestClient, FakeFrontend], fields: dict[str, Any], shown: tuple[str, ...]
):
    client, frontend = opening
    response = message(client, **fields)
    assert ignored(response) <= {"thinking.budget_tokens"}
    for each in shown:
        assert each in prompt_of(frontend)
    kinds = [each["type"] for each in told(response)["content"]]
    if "True" in shown[0]:
        assert kinds == ["thinking", "text"]


def test_a_switch_that_the_template_does_not_have_is_listed(client: TestClient):
    listed = ignored(message(client, thinking={"type": "enabled", "budget_tokens": 2000}))
    assert listed == {"thinking", "thinking.budget_tokens"}
    assert ignored(message(client, thinking={"type": "disabled"})) == {"thinking"}
    listed = ignored(message(client, output_config={"effort": "low", "task_budget": {}}))
    assert listed == {"output_config.effort", "output_config.task_budget"}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_says_so(client: TestClient, frontend: FakeFrontend, stream: bool):
    found = told(message(client, max_tokens=3, stream=stream))
    assert found["stop_reason"] == "max_tokens"
    assert found["content"][0]["text"] == ANSWER[:3]
    assert frontend.requests[0].sampling.max_tokens == 3


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


def test_arguments_that_are_no_object_are_passed_on_as_they_are():
    for arguments in ('{"a": ', "[1]", '{"a": 1}'):
        said = f'<tool_call>{{"name": "run", "arguments": {arguments}}}</tool_call>'
        with saying(said) as (client, _):
            content = told(message(client, tools=TOOLS))["content"]
        for each in content:
            if each["type"] == "tool_use" and arguments != '{"a": 1}':
                assert set(each["input"]) <= {"INVALID_JSON"}
            elif each["type"] == "tool_use":
                assert each["input"] == {"a": 1}


def ends_of(frontend: FakeFrontend, **end: Any) -> None:
    """Let the answer end as if so much had happened."""
    answers = frontend._answer

    async def ended(request: Any, index: int, cached: int):
        async for delta in answers(request, index, cached):
            last = delta.finish is not None
            yield TextDelta(text=delta.text, usage=delta.usage, **(end if last else {}))

    frontend._answer = ended  # type: ignore[method-assign]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        ({"finish": "stop", "stop": "END"}, "stop_sequence", "END"),
        ({"finish": "stop", "stop": 7}, "end_turn", None),
        ({"finish": "length"}, "model_context_window_exceeded", None),
        ({"finish": "length", "stop": "deadline"}, "max_tokens", None),
    ],
)
def test_every_end_has_its_reason(
    client: TestClient,
    frontend: FakeFrontend,
    stream: bool,
    end: dict[str, Any],
    reason: str,
    sequence: str | None,
):
    ends_of(frontend, **end)
    found = told(message(client, stream=stream, stop_sequences=["END"]))
    assert frontend.requests[0].stop == ("END",)
    assert (found["stop_reason"], found["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize("stream", [False, True])
def test_with_no_tokens_the_prompt_is_computed_and_nothing_is_said(
    client: TestClient, frontend: FakeFrontend, stream: bool
):
    found = told(message(client, max_tokens=0, stream=stream))
    assert (found["content"], found["stop_reason"]) == ([], "max_tokens")
    assert frontend.requests[0].sampling.max_tokens == 0
    assert not prompt_of(frontend).endswith("assistant:")


def test_the_beginning_of_an_answer_is_continued(client: TestClient, frontend: FakeFrontend):
    message(client, messages=[*USER, {"role": "assistant", "content": "Well,"}])
    assert prompt_of(frontend).endswith("assistant: Well,")
    assert frontend.requests[0].continuation


def test_what_can_be_said_of_sampling_reaches_the_engine(
    client: TestClient, frontend: FakeFrontend
):
    message(
        client,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        seed=3,
        min_p=0.1,
        timeout=5,
        priority=2,
        stop_sequences=["a", "b"],
    )
    [request] = frontend.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.seed, sampling.min_p) == (3, 0.1)
    assert (request.timeout, request.priority, request.stop) == (5, 2, ("a", "b"))


def test_a_schema_is_the_form_of_the_answer(client: TestClient, frontend: FakeFrontend):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    wanted = {"format": {"type": "json_schema", "schema": schema}}
    assert not ignored(message(client, output_config=wanted))
    [request] = frontend.requests
    form = request.sampling.grammar
    assert form is not None
    assert (form.kind, json.loads(form.text)) == ("json_schema", schema)
    frontend.fault = "it is odd"
    response = message(client, output_config=wanted)
    assert refused(response) == ("output_config.format", "invalid_json_schema")
    assert "response_format" not in response.text
    assert isinstance(frontend.grammars[-1], Grammar)


def test_salts_part_what_would_be_shared(client: TestClient):
    def read(**fields: Any) -> int:
        return int(told(message(client, **fields))["usage"]["cache_read_input_tokens"])

    assert read() == 0
    assert read() > 0
    assert read(cache_salt="mine") == 0
    assert read(extra_key="mine") == 0
    assert read(cache_salt="mine") > 0


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
    raws = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    wanted = asked(fields, raws, Dialect(Formats(), "", takes_tools=True, passes_calls=True))
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


def test_what_has_no_effect_is_listed_by_its_place(client: TestClient):
    mark = {"extra": 1}
    listed = ignored(
        message(
            client,
            **mark,
            system=[{"type": "text", "text": "Be kind.", **mark}],
            messages=[{"role": "user", "content": [{"type": "text", "text": "Hi", **mark}]}],
            metadata={"user_id": "me"},
            service_tier="auto",
            context_management={"edits": []},
            priority=1,
        )
    )
    assert listed == {
        "extra",
        "system.extra",
        "messages.content.extra",
        "metadata",
        "service_tier",
        "context_management",
        "priority",
    }
    with saying(ANSWER) as (tooled, _):
        tools = [{**TOOLS[0], **mark, "type": "custom", "defer_loading": True}]
        assert ignored(message(tooled, tools=tools)) == {
            "tools.extra",
            "tools.defer_loading",
        }


def test_null_means_absent_everywhere(client: TestClient, frontend: FakeFrontend):
    message(client)
    names = ["system", "tools", "tool_choice", "thinking", "output_config", "stop_sequences"]
    names += ["temperature", "top_p", "top_k", "stream", "metadata", "model", "mcp_servers"]
    assert not ignored(message(client, **dict.fromkeys(names)))
    first, second = frontend.requests
    assert (first.sampling, first.prompt) == (second.sampling, second.prompt)
    assert not ignored(message(client, tools=[], mcp_servers=[], stop_sequences=[]))


def test_query_and_headers_of_betas_are_no_trouble(client: TestClient):
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
    body = {"max_tokens": 9, "messages": USER}
    assert client.post("/v1/messages?beta=true", json=body, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"content": "Hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "tool", "content": "Hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"system": 5}, "system"),
        ({"temperature": 9}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"output_config": {"effort": "most"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"thinking": True}, "thinking"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tools": [5]}, "tools.0"),
        ({"tools": [{"name": "f g", "input_schema": {}}]}, "tools.0.name"),
        ({"tools": [schema_of({"type": "array"})]}, "tools.0.input_schema.type"),
        ({"tools": [schema_of({"required": 5})]}, "tools.0.input_schema.required"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools.1.name"),
        ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "tools.0.type"),
        ({"tools": [{"name": "w", "type": "web_search_20250305"}]}, "tools.0.type"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"output_format": {"type": "json_schema"}}, "output_format"),
        ({"stop": ["a"]}, "stop"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"timeout": 0}, "timeout"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_the_clients_own_words(fields: dict[str, Any], param: str):
    with saying(ANSWER) as (client, frontend):
        response = message(client, **fields)
        assert refused(response)[0] == param
        text = response.json()["error"]["message"]
        for foreign in ("function", "response_format", "reasoning_effort", "tool_calls"):
            assert foreign not in text
        assert not frontend.requests


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_told_in_the_clients_own_words(client: TestClient, stream: bool):
    response = message(client, stop_sequences=[""], stream=stream)
    assert refused(response)[0] == "stop_sequences"


def test_another_model_is_not_found(client: TestClient):
    response = message(client, model="claude-of-another-house")
    assert response.status_code == 404
    assert message(client, model=MODEL).status_code == 200


def test_counting_agrees_with_the_answer(client: TestClient, frontend: FakeFrontend):
    fields: dict[str, Any] = {
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1"}],
        "messages": [*USER, {"role": "assistant", "content": "Well,"}],
    }
    for each in (fields, {}, {"system": "Be kind."}):
        usage = told(message(client, **each))["usage"]
        assert counted(client, **each) == prompt_tokens(usage)
    generated = len(frontend.requests)
    counted(client)
    assert len(frontend.requests) == generated


def test_more_than_the_model_takes_can_be_counted(client: TestClient, frontend: FakeFrontend):
    long = "x" * frontend.card.max_model_len
    assert counted(client, messages=[{"role": "user", "content": long}]) > len(long)
    too_long = message(client, messages=[{"role": "user", "content": long}])
    assert refused(too_long) == ("messages", "context_length_exceeded")
    assert "prompt is too long" in too_long.json()["error"]["message"]


def test_what_is_too_long_is_named_as_it_was_sent(client: TestClient):
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {"at": "x" * 60}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "y" * 150}
    messages = [
        *USER,
        {"role": "user", "content": "More."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "text", "text": "Here."}, result]},
    ]
    response = message(client, system="z" * 90, messages=messages)
    assert refused(response) == ("messages", "context_length_exceeded")
    assert (
        "The longest messages are messages.3.content.1 (tool, 150 characters), "
        "system (system, 90 characters), messages.2 (assistant, 69 characters)."
    ) in response.json()["error"]["message"]


def test_counting_needs_no_free_place(frontend: FakeFrontend):
    frontend.waiting = 3
    with TestClient(create_app(frontend, settings=Settings(max_queue=3))) as client:
        assert message(client).status_code == 503
        assert counted(client) > 0


def test_what_is_new_in_the_cache_is_whole_blocks():
    def usage(page_size: int, prompt: int, cached: int, **card: Any) -> dict[str, int]:
        frontend = FakeFrontend()
        frontend.card = type(frontend.card)(
            name="m", max_model_len=99, vocab_size=256, created=1, page_size=page_size, **card
        )

        async def answered(request: Any, index: int, _: int):
            yield TextDelta(text="a", finish="stop", usage=Usage(prompt, 1, cached))

        frontend._answer = answered  # type: ignore[method-assign]
        with TestClient(create_app(frontend)) as client:
            return dict(told(message(client))["usage"])

    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    for card, sizes, counts in (
        ({}, (4, 30, 9), (2, 19, 9)),
        ({}, (4, 30, 29), (1, 0, 29)),
        ({}, (4, 3, 0), (3, 0, 0)),
        ({"prefix_cache": False}, (4, 30, 0), (30, 0, 0)),
    ):
        found = usage(*sizes, **card)
        assert tuple(found[name] for name in names) == counts


def test_what_leaves_nothing_in_the_cache_creates_nothing():
    frontend = FakeFrontend()
    frontend.card = type(frontend.card)(
        name="m", max_model_len=99, vocab_size=256, created=1, page_size=4
    )
    with TestClient(create_app(frontend)) as client:
        for mode, created in (("on", 16), ("read-only", 0), ("off", 0)):
            usage = told(message(client, cache={"mode": mode}, cache_salt=mode))["usage"]
            assert usage["cache_creation_input_tokens"] == created
            assert usage["cache_creation"]["ephemeral_5m_input_tokens"] == created


def test_models_are_listed_in_the_shape_that_is_asked_for(client: TestClient):
    headers = {"anthropic-version": "2023-06-01"}
    listed = client.get("/v1/models", headers=headers).json()
    [model] = listed["data"]
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, MODEL, MODEL)
    assert (model["type"], model["id"], model["lifecycle"]) == ("model", MODEL, "active")
    assert model["created_at"] == "2023-11-14T22:13:20Z"
    assert client.get(f"/v1/models/{MODEL}", headers=headers).json() == model
    assert client.get("/v1/models").json()["data"][0]["object"] == "model"
    missing = client.get("/v1/models/other", headers=headers).json()
    assert missing["error"]["type"] == "not_found_error"
