"""Fields that speak of tokens: which were chosen, which may be, and which must not."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.tokens import unpack
from tests.server.asking import chat, complete, error_of, events, refused
from tests.server.fake import ANSWER, FakeFrontend

IDS = [*ANSWER.encode()]
END = 2


def test_a_chat_tells_the_tokens_of_prompt_and_answers(client: TestClient, frontend: FakeFrontend):
    frontend.end = END
    body = chat(client, return_token_ids=True, n=2).json()
    assert body["prompt_token_ids"] == unpack(frontend.requests[0].prompt)
    for index, choice in enumerate(body["choices"]):
        assert choice["token_ids"] == [*IDS, ord(str(index)), END]


def test_a_streamed_chat_tells_the_same_in_pieces(client: TestClient, frontend: FakeFrontend):
    frontend.end = END
    chunks = events(chat(client, return_token_ids=True, stream=True))
    assert chunks[0]["prompt_token_ids"] == unpack(frontend.requests[0].prompt)
    assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
    pieces = [chunk["choices"][0].get("token_ids", []) for chunk in chunks]
    assert [token for piece in pieces for token in piece] == [*IDS, END]
    assert max(map(len, pieces)) == 2


def test_tokens_whose_text_is_held_back_are_told_too(client: TestClient, frontend: FakeFrontend):
    frontend.tokenizer.takes_tools = True
    frontend.tokenizer.chat_template_source = "<tool_call>"
    frontend.answer = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "f"}}]
    chunks = events(chat(client, return_token_ids=True, stream=True, tools=tools))
    told = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])]
    assert bytes(told).decode() == frontend.answer


@pytest.mark.parametrize("stream", [False, True])
def test_completions_tell_them_in_each_choice(
    client: TestClient, frontend: FakeFrontend, stream: bool
):
    frontend.end = END
    response = complete(client, ["ab", "c"], return_token_ids=True, stream=stream)
    chunks = events(response) if stream else [response.json()]
    prompts: dict[int, list[int]] = {}
    answers: dict[int, list[int]] = {0: [], 1: []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if "prompt_token_ids" in choice:
                assert choice["index"] not in prompts
                prompts[choice["index"]] = choice["prompt_token_ids"]
            answers[choice["index"]] += choice["token_ids"]
    assert prompts == {0: [*b"ab"], 1: [*b"c"]}
    assert answers == {0: [*IDS, END], 1: [*IDS, END]}


def test_nothing_is_told_unasked(client: TestClient):
    for response in (chat(client), complete(client), chat(client, stream=True)):
        assert "token_ids" not in response.text


def test_allowed_tokens_reach_the_engine(client: TestClient, frontend: FakeFrontend):
    for ask in (chat, complete):
        assert ask(client, allowed_token_ids=[65, 66]).status_code == 200
    assert [request.sampling.allowed_token_ids for request in frontend.requests] == [(65, 66)] * 2


@pytest.mark.parametrize("ask", [chat, complete])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [5] * 1025}, "allowed_token_ids"),
        ({"allowed_token_ids": [5, 256]}, "allowed_token_ids.1"),
        ({"allowed_token_ids": ["a"]}, "allowed_token_ids.0"),
        ({"allowed_token_ids": [5], "regex": "a"}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words.0"),
        ({"bad_words": ["a", 7]}, "bad_words.1"),
        ({"bad_words": "a"}, "bad_words"),
        ({"bad_words": ["a" * 5000]}, "bad_words"),
        ({"bad_words": ["a" * 600]}, "bad_words"),
        ({"bad_words": ["a"] * 5000}, "bad_words"),
    ],
)
def test_what_cannot_be_is_refused(
    client: TestClient, frontend: FakeFrontend, ask: Any, fields: dict[str, Any], param: str
):
    assert refused(ask(client, **fields))[0] == param
    assert not frontend.requests


def test_bad_words_are_spelt_as_they_begin_a_text_and_behind_a_space(
    client: TestClient, frontend: FakeFrontend
):
    for ask in (chat, complete):
        assert ask(client, bad_words=["no", " so", "\n"]).status_code == 200
    for request in frontend.requests:
        spelt = [bytes(unpack(word)) for word in request.sampling.bad_words]
        assert spelt == [b"no", b" no", b" so", b"\n"]


def test_of_several_answers_the_likeliest_are_told_the_best_first(
    client: TestClient, frontend: FakeFrontend
):
    frontend.logprobs = [-3.0, -1.0, -4.0, -2.0]
    body = complete(client, ["a", "b"], n=2, best_of=4).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in body["choices"]] == [ANSWER + "1", ANSWER + "3"] * 2
    assert all(choice["logprobs"] is None for choice in body["choices"])
    assert body["usage"]["completion_tokens"] == 2 * 4 * (len(ANSWER) + 1)
    assert [request.n for request in frontend.requests] == [4, 4]
    [choice] = complete(client, best_of=3, logprobs=1, echo=False).json()["choices"]
    assert choice["text"] == ANSWER + "1"
    assert choice["logprobs"]["token_logprobs"] == [-1.0] * (len(ANSWER) + 1)


@pytest.mark.parametrize("best_of", [0, 1, 129])
def test_the_best_of_too_few_or_too_many_are_refused(client: TestClient, best_of: int):
    error = error_of(complete(client, n=2, best_of=best_of))
    assert error["param"] == "best_of"
    assert "between n (2) and 128" in error["message"]


def test_the_best_answers_cannot_be_streamed(client: TestClient):
    assert refused(complete(client, best_of=2, stream=True))[0] == "best_of"
    assert complete(client, best_of=1, stream=True).status_code == 200
    assert refused(complete(client, ["a"] * 3, best_of=100))[0] == "best_of"
