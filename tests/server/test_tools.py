"""Tool calls over HTTP, as each family of models writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.errors import ConfigError
from radixserve.server.app import create_app
from radixserve.server.service import Settings
from tests.server.asking import accumulated, chat, error_of, events, refused
from tests.server.fake import FakeFrontend, saying
from tests.text.parsing.samples import ROME, SAMPLES, TOOLS, Sample

HERMES = SAMPLES["hermes with text"]
USED = {name: sample for name, sample in SAMPLES.items() if not sample.opened}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**call, "id": "x"} for call in message.get("tool_calls", [])]
    return {**message, "tool_calls": calls}


@pytest.mark.parametrize("sample", USED.values(), ids=USED.keys())
def test_each_family_is_told_in_openais_words(sample: Sample):
    with saying(sample.text, sample.tools, sample.style) as (client, _):
        [choice] = chat(client, tools=TOOLS).json()["choices"]
        message = choice["message"]
        calls = message.get("tool_calls", [])
        read = [
            (each["function"]["name"], json.loads(each["function"]["arguments"])) for each in calls
        ]
        if sample.tools != "none":
            assert read == sample.calls
        assert message["content"] == (sample.content or (None if calls else ""))
        assert message.get("reasoning", "") == sample.reasoning
        assert message.get("reasoning_content", "") == sample.reasoning
        assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
        assert {each["type"] for each in calls} <= {"function"}
        assert len({each["id"] for each in calls}) == len(calls)

        streamed = accumulated(chat(client, tools=TOOLS, stream=True))
        assert without_ids(streamed["message"]) == without_ids(message)
        assert streamed["finish_reason"] == choice["finish_reason"]


def test_a_long_argument_comes_in_many_pieces_from_the_start():
    text = "word " * 200
    arguments = json.dumps({"code": text})
    for tools, said in (
        ("hermes", f'<tool_call>{{"name": "run", "arguments": {arguments}}}</tool_call>'),
        (
            "qwen3_coder",
            f"<tool_call>\n<function=run>\n<parameter=code>\n{text}\n</parameter>\n</function>",
        ),
        ("gpt_oss", f"<|channel|>commentary to=functions.run<|message|>{arguments}"),
    ):
        with saying(said, tools) as (client, _):
            chunks = events(chat(client, tools=TOOLS, stream=True))
        pieces = [
            call["function"]["arguments"]
            for chunk in chunks
            for call in chunk["choices"][0]["delta"].get("tool_calls", [])
        ]
        assert json.loads("".join(pieces)) == {"code": text}
        assert len([piece for piece in pieces if piece]) > 500
        assert max(map(len, pieces)) < 20


CHOICES: dict[str, Any] = {"absent": None, "auto": "auto", "none": "none"}


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("parser", ["hermes", "none"])
@pytest.mark.parametrize("says", [HERMES.text, "Hello!"], ids=["call", "text"])
def test_there_are_calls_if_and_only_if_the_reason_says_so(
    choice: str | None, stream: bool, parser: str, says: str
):
    with saying(says, parser) as (client, frontend):
        response = chat(client, tools=TOOLS, tool_choice=choice, stream=stream)
        told = accumulated(response) if stream else response.json()["choices"][0]
    calls = parser == "hermes" and says == HERMES.text and choice != "none"
    assert told["finish_reason"] == ("tool_calls" if calls else "stop")
    assert bool(told["message"].get("tool_calls")) == calls
    if not calls:
        assert told["message"]["content"] == says
    assert frontend.requests[0].markers == (
        ("<tool_call>", "</tool_call>")
        if calls or (parser == "hermes" and choice != "none")
        else ()
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", range(1, len(HERMES.text), 7))
def test_an_answer_that_is_cut_says_length_and_what_there_is(stream: bool, size: int):
    with saying(HERMES.text) as (client, _):
        whole = chat(client, tools=TOOLS).json()["choices"][0]["message"]
        response = chat(client, tools=TOOLS, stream=stream, max_tokens=size)
        told = accumulated(response) if stream else response.json()["choices"][0]
    assert told["finish_reason"] == "length"
    for part, full in zip(told["message"].get("tool_calls", []), whole["tool_calls"], strict=False):
        assert part["function"]["name"] == full["function"]["name"]
        assert full["function"]["arguments"].startswith(part["function"]["arguments"])


def test_only_one_call_is_told_where_one_is_wanted():
    with saying(HERMES.text) as (client, _):
        for stream in (False, True):
            response = chat(client, tools=TOOLS, parallel_tool_calls=False, stream=stream)
            told = accumulated(response) if stream else response.json()["choices"][0]
            [call] = told["message"]["tool_calls"]
            assert call["function"] == {"name": "get_weather", "arguments": ROME}
            assert told["finish_reason"] == "tool_calls"


def test_each_of_several_answers_has_calls_of_its_own():
    with saying(HERMES.text) as (client, _):
        choices = chat(client, tools=TOOLS, n=3).json()["choices"]
        ids = [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]
        assert len(set(ids)) == len(ids) == 9
        assert all(each.startswith("call_") for each in ids)


def test_ids_are_as_short_as_the_template_wants_them():
    with saying(SAMPLES["mistral named"].text, "mistral") as (client, _):
        [choice] = chat(client, tools=TOOLS).json()["choices"]
        ids = [call["id"] for call in choice["message"]["tool_calls"]]
        assert all(len(each) == 9 and each.isalnum() for each in ids)
        assert len(set(ids)) == 3


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


@pytest.mark.parametrize(
    ("tools", "param", "code"),
    [
        ([], "tools", "invalid_value"),
        ("f", "tools", "invalid_type"),
        ([1], "tools.0", "invalid_type"),
        ([{}], "tools.0.type", "missing_required_parameter"),
        ([{"type": "custom", "custom": {"name": "f"}}], "tools.0.type", "invalid_value"),
        ([{"type": "function"}], "tools.0.function", "missing_required_parameter"),
        (
            [function(), {"type": "function", "function": {}}],
            "tools.1.function.name",
            "missing_required_parameter",
        ),
        ([function(name="a b")], "tools.0.function.name", "invalid_value"),
        ([function(name="a" * 129)], "tools.0.function.name", "invalid_value"),
        ([function(name=7)], "tools.0.function.name", "invalid_type"),
        ([function(), function()], "tools.1.function.name", "invalid_value"),
        ([function(description=1)], "tools.0.function.description", "invalid_type"),
        ([function(strict="yes")], "tools.0.function.strict", "invalid_type"),
        ([function(parameters=[])], "tools.0.function.parameters", "invalid_type"),
        (
            [function(parameters={"type": "string"})],
            "tools.0.function.parameters.type",
            "invalid_json_schema",
        ),
        (
            [function(parameters={"properties": []})],
            "tools.0.function.parameters.properties",
            "invalid_json_schema",
        ),
        (
            [function(parameters={"properties": {"b": {}, "a": 1}})],
            "tools.0.function.parameters.properties.a",
            "invalid_json_schema",
        ),
        (
            [function(parameters={"required": "a"})],
            "tools.0.function.parameters.required",
            "invalid_json_schema",
        ),
        ([function(name=f"f{i}") for i in range(129)], "tools", "invalid_value"),
        ([function(description="x" * 2**20)], "tools", "invalid_value"),
    ],
)
def test_a_tool_that_cannot_be_is_refused_by_its_place(tools: Any, param: str, code: str):
    with saying("Hi") as (client, frontend):
        assert refused(chat(client, tools=tools)) == (param, code)
        assert not frontend.requests


NAMED = {"type": "function", "function": {"name": "run"}}


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("always", "tool_choice"),
        ({"type": "function"}, "tool_choice"),
        (7, "tool_choice"),
        ({"type": "function", "function": {"name": "g"}}, "tool_choice.function.name"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "any", "tools": [NAMED]}},
            "tool_choice.allowed_tools.mode",
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{}]}},
            "tool_choice.allowed_tools.tools.0",
        ),
    ],
)
def test_a_choice_that_cannot_be_is_refused(choice: Any, param: str):
    with saying("Hi") as (client, frontend):
        assert refused(chat(client, tools=TOOLS, tool_choice=choice))[0] == param
        assert not frontend.requests


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("required", "tool_calls"),
        (NAMED, "stop"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
            "tool_calls",
        ),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}, None),
    ],
)
def test_a_choice_becomes_a_grammar_of_the_models_format(choice: Any, reason: str | None):
    run = SAMPLES["hermes"].text
    with saying(run) as (client, frontend):
        told = chat(client, tools=TOOLS, tool_choice=choice).json()["choices"][0]
        [request] = frontend.requests
        grammar = request.sampling.grammar
        assert grammar is not None
        assert grammar.kind == "lark"
        assert frontend.grammars == [grammar], "it is tried before it is used"
        assert ("get_weather" in grammar.text) == (choice == "required")
        assert "run" in grammar.text
        assert reason is None or told["finish_reason"] == reason
        assert told["message"]["tool_calls"]


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_choice_is_refused_where_calls_stay_in_the_text(choice: Any):
    with saying("Hi", "none") as (client, frontend):
        error = error_of(chat(client, tools=TOOLS, tool_choice=choice))
        assert (error["param"], error["code"]) == ("tool_choice", "unsupported_value")
        assert "--tool-call-parser" in error["message"]
        assert not frontend.requests


def test_tools_that_are_strict_are_kept_to_their_schema_or_listed():
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    for parser, kept in (("hermes", True), ("none", False)):
        with saying("Hi", parser) as (client, frontend):
            listed = chat(client, tools=strict).headers.get("x-radixserve-ignored")
            assert listed == (None if kept else "tools.function.strict")
            chat(client, tools=strict, tool_choice="none")
            chat(client, tools=TOOLS)
            first, *others = [request.sampling.grammar for request in frontend.requests]
            assert (first is not None) == kept
            assert others == [None, None]


FORM = {"type": "json_object"}


def test_a_form_and_tools_go_together_where_calls_can_be_told_from_it():
    for choice in (None, "auto", "none", "required"):
        with saying("{}") as (client, frontend):
            chat(client, tools=TOOLS, tool_choice=choice, response_format=FORM)
            grammar = frontend.requests[0].sampling.grammar
            assert grammar is not None
            assert grammar.kind == ("lark" if choice == "required" else "json_schema")
            assert ("@form" in grammar.frame) == (choice in (None, "auto"))
    with saying("{}", "llama3_json") as (client, _):
        refusal = refused(chat(client, tools=TOOLS, response_format=FORM))
        assert refusal == ("response_format", "unsupported_value")
        for choice in ("none", "required"):
            response = chat(client, tools=TOOLS, response_format=FORM, tool_choice=choice)
            assert response.status_code == 200


def test_a_fault_of_all_schemas_together_is_told_of_the_choice():
    with saying("Hi") as (client, frontend):
        frontend.faults = {"lark": "it is a riddle"}
        error = error_of(chat(client, tools=TOOLS, tool_choice="required"))
        assert error["param"] == "tool_choice"
        assert error["message"] == "Invalid form of calls for tool_choice: it is a riddle."
        frontend.faults = {"lark": "it is a riddle", "json_schema": "so is this"}
        error = error_of(chat(client, tools=TOOLS, tool_choice=NAMED))
        assert error["param"] == "tools.1.function.parameters"
        assert "so is this" in error["message"]


def test_a_choice_needs_tools(client: TestClient):
    assert refused(chat(client, tool_choice="required"))[0] == "tool_choice"
    assert refused(chat(client, tool_choice=NAMED))[0] == "tool_choice"
    assert chat(client, tool_choice="auto").status_code == 200


def test_tools_are_refused_where_the_model_was_never_told_of_any():
    with saying("Hi", takes_tools=False) as (client, frontend):
        error = error_of(chat(client, tools=TOOLS))
        assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
        assert "chat template" in error["message"]
        assert not frontend.requests
        assert chat(client, tools=TOOLS, tool_choice="none").status_code == 200


def test_tools_are_refused_where_nobody_knows_how_calls_are_written():
    with saying("Hi", "auto") as (client, _):
        error = error_of(chat(client, tools=TOOLS))
        assert error["param"] == "tools"
        assert "--tool-call-parser" in error["message"]


def test_the_format_is_told_by_the_chat_template():
    frontend = FakeFrontend(SAMPLES["qwen3 coder"].text, max_model_len=5000)
    frontend.tokenizer.takes_tools = True
    frontend.tokenizer.chat_template_source = "<tool_call>\n<function=name>\n<parameter=key>"
    with TestClient(create_app(frontend)) as client:
        [choice] = chat(client, tools=TOOLS).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 3


def test_a_parser_that_does_not_exist_is_refused_before_anything_is_loaded():
    with pytest.raises(ConfigError, match=r"--tool-call-parser 'x' is not known.*hermes"):
        Settings(tool_call_parser="x")
    with pytest.raises(ConfigError, match=r"--reasoning-parser 'x' is not known.*think"):
        Settings(reasoning_parser="x")


def test_completions_take_no_tools(client: TestClient):
    response = client.post("/v1/completions", json={"prompt": "x", "tools": TOOLS})
    assert refused(response) == ("tools", "unsupported_parameter")


def test_the_old_names_say_what_to_use_instead(client: TestClient):
    error = error_of(chat(client, functions=[{"name": "f"}]))
    assert (error["param"], error["code"]) == ("functions", "unsupported_parameter")
    assert "tools" in error["message"]
