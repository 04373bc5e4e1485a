"""SGLang's own API."""

from __future__ import annotations

from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from radixserve.scheduling.grammar import Grammar
from tests.server.asking import error_of, events, refused
from tests.server.fake import ANSWER, FakeFrontend


def generate(client: TestClient, **fields: Any) -> Response:
    return client.post("/generate", json=fields)


def test_a_text_is_continued(client: TestClient, frontend: FakeFrontend):
    body = generate(client, text="Hi", sampling_params={"max_new_tokens": 4}).json()
    assert body["text"] == ANSWER[:4]
    assert bytes(body["output_ids"]).decode() == ANSWER[:4]
    meta = body["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert meta["prompt_tokens"] == 2
    assert meta["completion_tokens"] == 4
    assert meta["cached_tokens"] == 0
    assert meta["e2e_latency"] > 0
    again = generate(client, text="Hi").json()["meta_info"]
    assert again["cached_tokens"] == 1
    assert again["finish_reason"] == {"type": "stop", "matched": None}
    assert frontend.requests[-1].sampling.temperature == 1.0


def test_ids_are_a_prompt_too_and_several_prompts_get_a_list(client: TestClient):
    assert generate(client, input_ids=[72, 105]).json()["meta_info"]["prompt_tokens"] == 2
    for several in ({"text": ["a", "bc"]}, {"input_ids": [[1], [1, 2]]}):
        answers = generate(client, **several).json()
        assert [each["meta_info"]["prompt_tokens"] for each in answers] == [1, 2]
        assert {each["text"] for each in answers} == {ANSWER}
    both = generate(client, text="a", sampling_params={"n": 2}).json()
    assert [each["text"] for each in both] == [ANSWER + "0", ANSWER + "1"]


def test_a_stream_tells_the_whole_text_so_far(client: TestClient):
    told = events(generate(client, text="Hi", stream=True))
    assert [each["text"] for each in told] == [ANSWER[: i + 1] for i in range(len(ANSWER))]
    assert [each["meta_info"]["completion_tokens"] for each in told] == [1, 2, 3, 4, 5, 6]
    assert [each["meta_info"]["finish_reason"] is None for each in told] == [True] * 5 + [False]
    pieces = events(generate(client, text=["a", "b"], stream=True))
    assert {each["index"] for each in pieces} == {0, 1}


def test_logprobs_stand_beside_their_tokens(client: TestClient):
    meta = generate(client, text="Hi", return_logprob=True, logprob_start_len=-1).json()[
        "meta_info"
    ]
    assert meta["output_token_logprobs"][0] == [-0.5, ord("H"), "H"]
    assert len(meta["output_token_logprobs"]) == len(ANSWER)


@pytest.mark.parametrize("start", [0, 1, 3, 4, 9])
def test_logprobs_of_a_prompt_begin_where_they_are_asked_for(
    client: TestClient, frontend: FakeFrontend, start: int
):
    sampling = {"max_new_tokens": 0, "n": 2}
    asked = {"return_logprob": True, "logprob_start_len": start, "top_logprobs_num": 1}
    first, second = generate(client, text="Once", sampling_params=sampling, **asked).json()
    meta = first["meta_info"]
    tokens = "Once"[start:]
    assert [text for _, _, text in meta["input_token_logprobs"]] == list(tokens)
    assert [token for _, token, _ in meta["input_token_logprobs"]] == list(tokens.encode())
    # The first one has none, wherever it stands.
    logprobs = [logprob for logprob, _, _ in meta["input_token_logprobs"]]
    assert logprobs == [None, *[-1.5] * 3][: len(tokens)]
    rivals = [None, *[[[-0.25, ord("?"), "?"]]] * 3][: len(tokens)]
    assert meta["input_top_logprobs"] == rivals
    assert meta["output_token_logprobs"] == meta["output_top_logprobs"] == []
    assert meta["completion_tokens"] == 0
    assert second["meta_info"]["input_token_logprobs"] == []
    assert frontend.requests[0].sampling.prompt_logprobs_start == start + 1


def test_what_its_benchmark_sends_is_taken(client: TestClient):
    answer = generate(
        client,
        text="Hi",
        sampling_params={"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True},
        stream=True,
        lora_path="" or None,
        return_logprob=False,
        return_routed_experts=False,
        logprob_start_len=-1,
        rid="mine",
    )
    assert answer.headers["x-radixserve-ignored"] == "rid"
    assert events(answer)[-1]["text"] == ANSWER
    assert client.post("/flush_cache").json()["success"] is True


def test_extra_key_narrows_beside_the_salt(client: TestClient, frontend: FakeFrontend):
    for fields in (
        {},
        {"extra_key": "a"},
        {"cache_salt": "a"},
        {"extra_key": "a", "cache_salt": "a"},
        {"extra_key": "a"},
    ):
        generate(client, text="Hi", **fields)
    *different, again = (request.namespace for request in frontend.requests)
    assert len(set(different)) == 4
    assert again == different[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": []}, "text"),
        ({"text": ""}, "text"),
        ({"input_ids": [300]}, "input_ids.0"),
        ({"text": ["x"] * 65}, "text"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "a", "image_data": "x" * 100}, "image_data"),
        ({"text": "a", "sampling_params": {"stop_regex": "a+"}}, "sampling_params.stop_regex"),
        ({"text": [""]}, "text.0"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[1], []]}, "input_ids.1"),
        ({"text": "a", "sampling_params": {"custom_params": {"x": 1}}},
         "sampling_params.custom_params"),
        ({"text": "a", "sampling_params": {"temperature": "hot"}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"n": 10**9}}, "sampling_params.n"),
        ({"text": "a", "sampling_params": {"stop": ["a"] * 5}}, "sampling_params.stop"),
        ({"text": "a", "sampling_params": {"stop": ["a", 1]}}, "sampling_params.stop.1"),
        ({"text": "a", "sampling_params": {"logit_bias": {"1": 101}}},
         "sampling_params.logit_bias.1"),
        (
            {"text": "a", "sampling_params": {"max_new_tokens": -1}},
            "sampling_params.max_new_tokens",
        ),
        ({"text": "a", "sampling_params": {"min_new_tokens": 129}},
         "sampling_params.min_new_tokens"),
        ({"text": "a", "sampling_params": {"sampling_seed": 2**64}},
         "sampling_params.sampling_seed"),
        ({"text": "a", "priority": 2**31}, "priority"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
        (
            {"text": "a", "return_logprob": True, "logprob_start_len": 0, "stream": True},
            "logprob_start_len",
        ),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 10**6}, "top_logprobs_num"),
        ({"text": "x" * 300}, "text"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(
    client: TestClient, frontend: FakeFrontend, fields: dict[str, Any], param: str
):
    assert refused(generate(client, **fields))[0] == param
    assert frontend.requests == []


def test_refusals_speak_of_fields_by_their_names_here(client: TestClient, frontend: FakeFrontend):
    short = {"min_new_tokens": 5, "max_new_tokens": 2}
    message = error_of(generate(client, text="a", sampling_params=short))["message"]
    assert message == "min_new_tokens (5) is greater than max_new_tokens (2)."
    frontend.most = 2
    for prompts in ({"text": ["a"] * 3}, {"input_ids": [[1]] * 3}):
        assert [refused(generate(client, **prompts))[0]] == list(prompts)


def test_sampling_parameters_without_effect_are_listed(client: TestClient):
    sampling = {"temprature": 1, "stream_interval": 2, "custom_params": {}, "top_k": None}
    answer = generate(client, text="a", sampling_params={**sampling, "stop_regex": None}, rid="b")
    listed = "rid, sampling_params.stream_interval, sampling_params.temprature"
    assert answer.headers["x-radixserve-ignored"] == listed


@pytest.mark.parametrize(
    ("name", "text", "grammar"),
    [
        ("json_schema", '{"type":"object"}', Grammar("json_schema", '{"type":"object"}')),
        ("regex", "a+", Grammar("regex", "a+")),
        ("ebnf", 'root ::= "a"', Grammar("grammar", 'root ::= "a"')),
    ],
)
def test_an_answer_may_be_given_a_form(
    client: TestClient, frontend: FakeFrontend, name: str, text: str, grammar: Grammar
):
    assert generate(client, text="a", sampling_params={name: text}).status_code == 200
    assert frontend.requests[0].sampling.grammar == grammar
    frontend.fault = "it is a riddle"
    error = error_of(generate(client, text="a", sampling_params={name: text}))
    assert (error["param"], error["code"]) == (f"sampling_params.{name}", "invalid_json_schema")
    assert error["message"].endswith(f" for sampling_params.{name}: it is a riddle.")
    two = {"regex": "a", "ebnf": 'root ::= "a"'}
    assert refused(generate(client, text="a", sampling_params=two))[0] == "ebnf"


def test_an_engine_that_fails_says_so(client: TestClient, frontend: FakeFrontend):
    frontend.fail_after = 2
    assert "It broke." in error_of(generate(client, text="a"), 500)["message"]
    told = events(generate(client, text="a", stream=True))
    assert "It broke." in told[-1]["error"]["message"]
