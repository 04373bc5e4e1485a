"""Completions of prompts that are texts or tokens, one or several."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.server.asking import complete, events, refused
from tests.server.fake import ANSWER, FakeFrontend


def test_an_answer_has_the_shape_of_openai(client: TestClient, frontend: FakeFrontend):
    body = complete(client, "Once").json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": ANSWER, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert body["usage"]["prompt_tokens"] == 4
    assert frontend.requests[0].sampling.max_tokens == 16
    assert frontend.requests[0].continuation


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("ab", 1), ([97, 98], 1), (["ab"], 1), ([[97, 98]], 1), (["ab", "c"], 2), ([[97], [98]], 2)],
)
def test_every_form_of_prompt_is_taken(client: TestClient, prompt: object, count: int):
    body = complete(client, prompt, n=2).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * count))
    assert [choice["text"][-1] for choice in body["choices"]] == ["0", "1"] * count


def test_choices_are_numbered_prompt_by_prompt(client: TestClient):
    body = complete(client, ["a", "bb", "ccc"], echo=True, n=2).json()
    assert [choice["text"].split("H")[0] for choice in body["choices"]] == [
        "a", "a", "bb", "bb", "ccc", "ccc",
    ]  # fmt: skip
    assert body["usage"]["prompt_tokens"] == 6
    assert body["usage"]["completion_tokens"] == 6 * (len(ANSWER) + 1)


def test_a_stream_of_several_prompts_tells_their_choices_apart(client: TestClient):
    options = {"include_usage": True}
    chunks = events(complete(client, ["a", "bb"], echo=True, stream=True, stream_options=options))
    texts = {0: "", 1: ""}
    for chunk in chunks[:-1]:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "a" + ANSWER, 1: "bb" + ANSWER}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == 3


def test_tokens_are_echoed_as_their_text(client: TestClient):
    assert complete(client, [72, 105], echo=True).json()["choices"][0]["text"] == "Hi" + ANSWER


def test_a_prompt_that_ends_inside_a_character_is_not_in_the_answer(client: TestClient):
    euro = list("prompt €".encode())[:-1]
    chunks = events(complete(client, euro, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == ANSWER


def test_the_length_is_honoured_and_said(client: TestClient):
    choice = complete(client, max_tokens=2).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (ANSWER[:2], "length")


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_stand_beside_their_tokens(client: TestClient, stream: bool):
    response = complete(client, logprobs=1, stream=stream)
    chunks = events(response) if stream else [response.json()]
    shown = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [token for each in shown for token in each["tokens"]] == list(ANSWER)
    assert [offset for each in shown for offset in each["text_offset"]] == list(range(len(ANSWER)))
    assert shown[0]["token_logprobs"][0] == -0.5
    assert shown[0]["top_logprobs"][0] == {"H": -0.5, "?": -9999.0}


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([], "prompt"),
        ("", "prompt"),
        ([""], "prompt.0"),
        ([[]], "prompt.0"),
        (["a", ""], "prompt.1"),
        ([[1], []], "prompt.1"),
        ([1, "a"], "prompt.1"),
        ([1, 256], "prompt.1"),
        ([-1], "prompt.0"),
        ([10**400], "prompt.0"),
        ([[1], [2, 2**63]], "prompt.1.1"),
        ([1.5], "prompt.0"),
        ([True], "prompt.0"),
        ([[[1]]], "prompt.0.0"),
        ({"a": 1}, "prompt"),
        (None, "prompt"),
        (["a"] * 50_000, "prompt"),
    ],
)
def test_a_prompt_that_cannot_be_is_refused_by_name(
    client: TestClient, frontend: FakeFrontend, prompt: object, param: str
):
    assert refused(complete(client, prompt))[0] == param
    assert not frontend.requests
    assert complete(client).status_code == 200


def test_what_is_not_built_is_refused(client: TestClient):
    assert refused(complete(client, suffix="end")) == ("suffix", "unsupported_parameter")
    assert complete(client, best_of=2, n=2).status_code == 200


def test_a_missing_prompt_is_named(client: TestClient):
    response = client.post("/v1/completions", json={})
    assert refused(response) == ("prompt", "missing_required_parameter")
