"""Text to token ids and back."""

from __future__ import annotations

from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from tests.server.asking import USER, error_of, refused
from tests.server.fake import MODEL, FakeFrontend


def tokenize(client: TestClient, **fields: Any) -> Response:
    return client.post("/tokenize", json=fields)


def test_a_text_becomes_ids_and_they_become_the_text(client: TestClient):
    body = tokenize(client, prompt="Hé", model=MODEL).json()
    assert body == {"count": 3, "max_model_len": 200, "tokens": [72, 195, 169], "token_strs": None}
    back = client.post("/detokenize", json={"tokens": body["tokens"]})
    assert back.json() == {"prompt": "Hé", "content": "Hé"}
    assert client.post("/detokenize", json={"tokens": []}).json()["prompt"] == ""


def test_llama_cpps_name_for_a_text_is_known_too(client: TestClient):
    assert tokenize(client, content="Hi").json()["tokens"] == [72, 105]


def test_a_chat_is_counted_as_its_prompt_would_be(client: TestClient, frontend: FakeFrontend):
    body = tokenize(client, messages=USER, chat_template_kwargs={"a": 1}).json()
    assert bytes(body["tokens"]).decode() == "{'a': 1}\nuser: Hi\nassistant:"
    whole = tokenize(client, messages=USER, add_generation_prompt=False).json()
    assert bytes(whole["tokens"]).decode() == "user: Hi"
    assert frontend.requests == []


def test_more_than_the_model_takes_can_be_counted(client: TestClient):
    assert tokenize(client, prompt="x" * 1000).json()["count"] == 1000


def test_fields_without_effect_are_listed(client: TestClient):
    assert tokenize(client, prompt="x", user="me").headers["x-radixserve-ignored"] == "user"


def test_marks_of_another_api_are_listed_as_for_chats(client: TestClient):
    messages = [USER[0] | {"cache_control": {"type": "ephemeral"}}]
    told = tokenize(client, messages=messages)
    assert told.headers["x-radixserve-ignored"] == "messages.cache_control"
    assert told.json() == tokenize(client, messages=USER).json()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": USER}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"prompt": "x" * (2**23 + 1)}, "prompt"),
    ],
)
def test_what_cannot_be_tokenized_is_named(client: TestClient, fields: dict[str, Any], param: str):
    assert refused(tokenize(client, **fields))[0] == param


@pytest.mark.parametrize("tokens", [[256], [-1], [1, 2**40], ["a"], "x", None])
def test_what_are_no_tokens_is_refused(client: TestClient, tokens: Any):
    error = error_of(client.post("/detokenize", json={"tokens": tokens}))
    assert "tokens" in error["param"]


def test_another_model_is_not_here(client: TestClient):
    assert error_of(tokenize(client, prompt="x", model="m"), 404)["code"] == "model_not_found"
