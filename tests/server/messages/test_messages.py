"""Requests to the Messages API, and the answers in its shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.engine.frontend import TextDelta
from radixserve.scheduling.grammar import Grammar
from tests.server.fake import ANSWER, MODEL, FakeFrontend
from tests.server.messages.asking import (
    USER,
    ignored,
    message,
    prompt_of,
    prompt_tokens,
    refused,
    told,
)


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
def test_an_answer_that_is_cut_says_so(client: TestClient, frontend: FakeFrontend, stream: bool):
    found = told(message(client, max_tokens=3, stream=stream))
    assert found["stop_reason"] == "max_tokens"
    assert found["content"][0]["text"] == ANSWER[:3]
    assert frontend.requests[0].sampling.max_tokens == 3


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
