"""What requests to the Messages API may say, what is without effect, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.server.fake import ANSWER, MODEL, FakeFrontend, saying
from tests.server.messages.asking import TOOLS, USER, ignored, message, refused


def schema_of(schema: dict[str, Any]) -> dict[str, Any]:
    """A tool whose arguments have this schema."""
    return {"name": "f", "input_schema": schema}


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
