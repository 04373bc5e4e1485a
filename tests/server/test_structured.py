"""Answers of a form, under every name that clients have for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.scheduling.grammar import Grammar
from tests.server.asking import USER, chat, complete, error_of, refused, send
from tests.server.fake import FakeFrontend

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
GBNF = 'root ::= "yes"'


def named(schema: object, **more: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": named(SCHEMA, strict=True)}, "json_schema", TEXT),
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", TEXT),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", TEXT),
        ({"structured_outputs": {"json": TEXT, "regex": None}}, "json_schema", TEXT),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["é", "no"]}}, "choice", '["é","no"]'),
        ({"structured_outputs": {"grammar": GBNF}}, "grammar", GBNF),
        ({"structured_outputs": {"json_object": True}}, "json_schema", '{"type":"object"}'),
        ({"guided_json": SCHEMA}, "json_schema", TEXT),
        ({"guided_json": TEXT}, "json_schema", TEXT),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["yes"]}, "choice", '["yes"]'),
        ({"guided_grammar": GBNF}, "grammar", GBNF),
        ({"json_schema": TEXT}, "json_schema", TEXT),
        ({"regex": "a+", "ebnf": None}, "regex", "a+"),
        ({"ebnf": GBNF}, "grammar", GBNF),
        ({"grammar": GBNF}, "grammar", GBNF),
    ],
)
@pytest.mark.parametrize("ask", [chat, complete])
def test_each_name_asks_for_its_form(
    client: TestClient, frontend: FakeFrontend, ask: Any, fields: Any, kind: Any, text: str
):
    response = ask(client, **fields)
    assert response.status_code == 200
    assert "x-radixserve-ignored" not in response.headers
    [request] = frontend.requests
    assert request.sampling.grammar == Grammar(kind, text)
    assert frontend.grammars == [request.sampling.grammar], "it is tried before it is used"


@pytest.mark.parametrize(
    "fields", [{}, {"response_format": {"type": "text"}}, {"guided_json": None, "regex": None}]
)
def test_where_nothing_is_said_the_answer_is_free(
    client: TestClient, frontend: FakeFrontend, fields: dict[str, Any]
):
    assert chat(client, **fields).status_code == 200
    assert frontend.requests[0].sampling.grammar is None
    assert not frontend.grammars


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"regex": "a", "ebnf": GBNF}, ("regex", "ebnf")),
        ({"response_format": named({}), "guided_json": {}}, ("response_format", "guided_json")),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            ("structured_outputs.choice", "structured_outputs.regex"),
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            ("response_format", "structured_outputs.regex"),
        ),
    ],
)
def test_two_forms_at_once_are_refused_by_both_names(
    client: TestClient, frontend: FakeFrontend, fields: dict[str, Any], names: tuple[str, str]
):
    error = error_of(chat(client, **fields))
    assert f"{names[0]} and {names[1]}" in error["message"]
    assert error["param"] == names[1]
    assert not frontend.requests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"response_format": named({})},
            "Invalid schema for response_format 'person': it is a riddle.",
        ),
        ({"guided_json": {}}, "Invalid schema for guided_json: it is a riddle."),
        (
            {"structured_outputs": {"regex": "a"}},
            "Invalid regex for structured_outputs.regex: it is a riddle.",
        ),
        ({"ebnf": "a"}, "Invalid grammar for ebnf: it is a riddle."),
    ],
)
def test_a_form_that_is_not_valid_is_refused_with_the_reason(
    client: TestClient, frontend: FakeFrontend, fields: Any, message: str, stream: bool
):
    frontend.fault = "it is a riddle"
    for ask in (chat, complete):
        error = error_of(ask(client, stream=stream, **fields))
        assert (error["message"], error["code"]) == (message, "invalid_json_schema")
        assert error["param"].split(".")[0] in fields
    assert not frontend.requests


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "unsupported_value"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing_required_parameter",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
            "missing_required_parameter",
        ),
        ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
        ({"response_format": {"type": "text", "x": 1}}, "response_format", "invalid_type"),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs", "invalid_type"),
        (
            {"structured_outputs": {"structural_tag": {"a": 1}}},
            "structured_outputs.structural_tag",
            "unsupported_parameter",
        ),
        ({"guided_choice": "yes"}, "guided_choice", "invalid_type"),
        ({"guided_choice": [1]}, "guided_choice.0", "invalid_type"),
        ({"regex": 5}, "regex", "invalid_type"),
    ],
)
def test_what_is_no_form_at_all_is_refused_by_its_place(
    client: TestClient, frontend: FakeFrontend, fields: Any, param: str, code: str
):
    assert refused(chat(client, **fields)) == (param, code)
    assert not frontend.grammars


@pytest.mark.parametrize(
    "field",
    [r'"regex": "\ud800"', r'"guided_choice": ["\ud800"]', r'"guided_json": "\ud800"'],
)
def test_half_a_surrogate_pair_is_no_form(client: TestClient, frontend: FakeFrontend, field: str):
    body = f'{{"messages": {json.dumps(USER)}, {field}}}'
    assert refused(send(client, body))[1] == "invalid_json"
    assert not frontend.grammars


def test_a_schema_of_very_many_values_is_refused_as_one(client: TestClient):
    schema = {"enum": [f"value {number}" for number in range(100_000)]}
    error = error_of(chat(client, response_format=named(schema)))
    assert (error["param"], error["code"]) == ("response_format", "invalid_json_schema")
    assert error["message"].startswith("Invalid schema for response_format")
