"""Whatever is sent, the answer is short, quick, of one shape, and the next request works."""

from __future__ import annotations

import json
import time

import pytest
from starlette.testclient import TestClient

from radixserve.server.app import create_app
from radixserve.server.service import Settings
from tests.server.asking import USER, chat, complete, error_of, refused, send
from tests.server.fake import MODEL, FakeFrontend

HANG = 5.0
"""Seconds; what is tested takes milliseconds."""
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b'{"messages": NaN}',
        b'{"temperature": Infinity, "messages": []}',
        b'{"x": 01}',
        b'\xff\xfe{"messages": []}',
        b'{"user": "\xff"}',
        b'{"user": "\\ud800"}',
        b'{"messages": [{"role": "user", "content": "\\udfff"}]}',
        b'{"messages": []} and more',
        b"[" * 100_000,
        b'{"messages": ' + b"[" * 100_000,
        b'{"unknown": ' + b'{"a":' * 100_000,
    ],
    ids=lambda body: repr(body[:30]),
)
def test_what_is_not_json_is_said_not_to_be(client: TestClient, body: bytes):
    error = error_of(send(client, body))
    assert error["code"] in ("invalid_json", "invalid_type")
    assert chat(client).status_code == 200


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"user": "\\ud800"}', "its end"),
        (b'{"user": "\\uDBff"}\n', "its end"),
        (b'{"user": "\\ud800 and", "messages": []}', "byte 16"),
        (b'{"user": "\\ud800\\u0041", "messages": []}', "byte 22"),
        (b'{"user": "\\udfff"}', "byte 16"),
    ],
)
def test_half_a_surrogate_pair_is_called_so(client: TestClient, body: bytes, place: str):
    error = error_of(send(client, body))
    assert "a lone surrogate" in error["message"]
    assert f"stands before {place}." in error["message"]


@pytest.mark.parametrize("end", [b"\\ud83d", b"\\ud83d\\", b"\\ud83d\\ude0", b""])
def test_a_body_that_is_cut_is_called_so(client: TestClient, end: bytes):
    error = error_of(send(client, b'{"user": "' + end))
    assert "Input data was truncated" in error["message"]


@pytest.mark.parametrize("name", ["suffix", "audio", "unknown", "echo", "regex", "metadata"])
@pytest.mark.parametrize("path", ["chat/completions", "completions", "messages", "responses"])
def test_half_a_surrogate_pair_harms_no_route(client: TestClient, name: str, path: str):
    fields = {"messages": USER, "prompt": "Hi", "input": "Hi", "max_tokens": 1, name: "\ud800"}
    answer = send(client, json.dumps(fields), f"/v1/{path}")
    assert answer.status_code in (200, 400)


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"1"])
def test_a_body_must_be_an_object(client: TestClient, body: bytes):
    assert refused(send(client, body)) == (None, "invalid_type")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": "2"}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": True}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": {}}, "temperature"),
        ({"stop": 1}, "stop"),
        ({"stop": ["a", 1]}, "stop.1"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"stop_token_ids": [1, None]}, "stop_token_ids.1"),
        ({"logprobs": 3}, "logprobs"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"priority": "high"}, "priority"),
        ({"model": 5}, "model"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [*USER, "Hi"]}, "messages.1"),
        ({"messages": [{"role": 1, "content": "a"}]}, "messages.0.role"),
        ({"messages": [*USER, {"role": "assistant", "tool_calls": {}}]}, "messages.1.tool_calls"),
        ({"messages": [{"role": "tool", "content": "", "tool_call_id": 1}]},
         "messages.0.tool_call_id"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_named_by_its_path(client: TestClient, fields: dict, param: str):
    assert refused(chat(client, **fields)) == (param, "invalid_type")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages.0.role"),
        ({"messages": [*USER, {"role": "user"}]}, "messages.1.content"),
    ],
)
def test_what_is_missing_is_named(client: TestClient, fields: dict, param: str):
    found, code = refused(chat(client, **fields))
    assert found == param
    assert code in ("missing_required_parameter", "invalid_type")
    assert refused(send(client, "{}")) == ("messages", "missing_required_parameter")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 10**9}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e6}, "temperature"),
        ({"temperature": 1e308}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 10**400}, "seed"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 10**400}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 2}, "min_tokens"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"256": 1}}, "logit_bias.256"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
        ({"logit_bias": {str(i): 1 for i in range(5000)}}, "logit_bias"),
        ({"stop_token_ids": [300]}, "stop_token_ids.0"),
        ({"stop_token_ids": [1] * 5000}, "stop_token_ids"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ["a"] * 500_000}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": "x" * 100_000}, "stop"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "é" * 257}, "cache_salt"),
        ({"priority": 2**31}, "priority"),
        ({"messages": []}, "messages"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_an_impossible_value_is_named_at_once(
    client: TestClient, frontend: FakeFrontend, fields: dict, param: str
):
    start = time.process_time()
    response = chat(client, **fields)
    assert time.process_time() - start < HANG
    assert refused(response)[0] == param
    assert len(response.content) < 2000
    assert chat(client).status_code == 200


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 5000])
def test_numbers_beyond_all_measure_are_refused_by_name(client: TestClient, number: str):
    body = f'{{"messages": {json.dumps(USER)}, "temperature": {number}}}'
    assert refused(send(client, body)) == ("temperature", "invalid_value")


def test_of_a_key_that_comes_twice_the_last_one_counts(client: TestClient, frontend: FakeFrontend):
    body = f'{{"messages": [], "max_tokens": 1, "messages": {json.dumps(USER)}, "max_tokens": 2}}'
    assert send(client, body).status_code == 200
    assert frontend.requests[0].sampling.max_tokens == 2


def test_the_answer_does_not_echo_a_long_input(client: TestClient):
    for response in (
        chat(client, model="m" * 100_000),
        send(client, b'{"messages": [], "' + b"k" * 100_000 + b'": NaN}'),
        chat(client, **{"k" * 100_000: 1}),
        chat(client, **{f"unknown{i}": 1 for i in range(10_000)}),
    ):
        assert len(response.content) < 2000
        assert len(str(response.headers)) < 4000


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 20_000_000,
        b'{"messages": [' + b"[]," * 7_000_000 + b"[]]}",
        b'{"other": [' + b"[]," * 7_000_000 + b"[]]}",
        b'{"messages": [], "other": ' + b"[" * 20_000_000,
        b"{" + b",".join(b'"%d":0' % i for i in range(1_500_000)) + b"}",
    ],
    ids=["depth", "messages", "elsewhere", "depth elsewhere", "keys"],
)
def test_twenty_megabytes_of_brackets_are_refused_quickly(client: TestClient, body: bytes):
    start = time.process_time()
    error_of(send(client, body))
    assert time.process_time() - start < HANG
    assert chat(client).status_code == 200


def test_values_without_number_beside_the_messages_are_refused(client: TestClient):
    message = b'{"messages": [{"role": "user", "content": "a, b"}], '
    keys = b",".join(b'"%d":0' % i for i in range(100_000))
    assert refused(send(client, message + keys + b"}")) == (None, "invalid_value")


def test_lists_without_number_are_refused_before_they_are_built(client: TestClient):
    body = b'{"prompt": [' + b"[1]," * 2**18 + b"[1]]}"
    error = error_of(send(client, body, "/v1/completions"))
    assert error["code"] == "invalid_value"
    assert "lists and objects" in error["message"]


def test_a_large_honest_body_is_served(frontend: FakeFrontend):
    frontend = FakeFrontend(max_model_len=2_000_000)
    with TestClient(create_app(frontend)) as client:
        text = 'a, "b", [c], ' * 100_000
        assert chat(client, messages=[{"role": "user", "content": text}]).status_code == 200
        assert complete(client, text).status_code == 200
        assert complete(client, [1, 2] * 500_000).status_code == 200


def test_an_unknown_model_is_not_found(client: TestClient):
    error = error_of(chat(client, model="gpt-5"), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert error["type"] == "invalid_request_error"
    assert MODEL in error["message"]


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}])
def test_other_media_types_are_refused(client: TestClient, headers: dict):
    response = client.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)
    error = error_of(response, 415)
    assert error["code"] == "unsupported_media_type"
    assert "application/json" in error["message"]


def test_compressed_bodies_are_refused(client: TestClient):
    response = client.post(
        "/v1/completions", content=b"", headers={**JSON, "content-encoding": "gzip"}
    )
    assert error_of(response, 415)["param"] == "content-encoding"


def test_json_may_name_its_charset(client: TestClient):
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    response = client.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused(frontend: FakeFrontend, chunked: bool):
    with TestClient(create_app(frontend, settings=Settings(body_limit=1000))) as client:
        body = b'{"prompt": "' + b"a" * 2000 + b'"}'
        content = (body[i : i + 100] for i in range(0, len(body), 100)) if chunked else body
        response = client.post("/v1/completions", content=content, headers=JSON)
        error = error_of(response, 413)
        assert error["type"] == "request_too_large"
        assert complete(client).status_code == 200


def test_a_prompt_that_must_be_too_long_is_refused_before_it_is_tokenized(
    client: TestClient, frontend: FakeFrontend
):
    long = "a" * 300
    for response, param in (
        (chat(client, messages=[{"role": "user", "content": long}]), "messages"),
        (chat(client, messages=USER * 300), "messages"),
        (complete(client, long), "prompt"),
        (complete(client, ["a", long]), "prompt.1"),
        (complete(client, [1] * 200), "prompt"),
    ):
        error = error_of(response)
        assert (error["param"], error["code"]) == (param, "context_length_exceeded")
        assert "This model's maximum context length is 200 tokens" in error["message"]
        assert "prompt is too long" in error["message"]
    assert frontend.tokenizer.encoded == 1  # the "a" before the long one


def test_too_many_prompts_are_refused_before_any_work(client: TestClient, frontend: FakeFrontend):
    assert refused(complete(client, ["a"] * 65)) == ("prompt", "invalid_value")
    assert refused(complete(client, ["a"] * 64, n=5)) == ("n", "invalid_value")
    assert frontend.tokenizer.encoded == 0


def test_unknown_routes_and_methods_have_the_same_shape(client: TestClient):
    assert error_of(client.get("/v2/nothing"), 404)["code"] == "unknown_url"
    error = error_of(client.get("/v1/chat/completions"), 405)
    assert error["code"] == "method_not_allowed"
    assert error["message"] == "This URL takes POST, not GET."
    prefix = client.get("/v1/cache/prefixes/support")
    assert error_of(prefix, 405)["message"] == "This URL takes DELETE, PUT, not GET."
    assert prefix.headers["allow"] == "DELETE, PUT"
    assert error_of(client.delete("/v1/models"), 405)["code"] == "method_not_allowed"
    assert error_of(client.post("/v1/chat/completions/", json={}), 404)


def test_more_answers_than_there_is_ever_room_for_are_refused_for_good(
    client: TestClient, frontend: FakeFrontend
):
    frontend.most = 12
    for fields, param in (({"prompt": ["a"] * 13}, "prompt"), ({"prompt": ["a"] * 5, "n": 3}, "n")):
        error = error_of(complete(client, **fields))
        assert error["param"] == param
        assert "at most 12" in error["message"]
    assert error_of(chat(client, n=13))["param"] == "n"
    assert not frontend.requests
    assert complete(client, ["a"] * 6, n=2).status_code == 200


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"timeout": 0}, "timeout must be above 0."),
        ({"timeout": 10**6}, "timeout must be at most 86400."),
        ({"priority": -(2**31)}, f"priority must be at least {1 - 2**31}."),
        (
            {"messages": [{"role": "", "content": "a"}]},
            "messages.0.role must have a length of at least 1.",
        ),
    ],
)
def test_bounds_are_told_in_words(client: TestClient, fields: dict, message: str):
    response = chat(client, **fields)
    assert error_of(response)["message"] == message
    assert refused(response) == (message.split(" ")[0], "invalid_value")


@pytest.mark.parametrize(
    ("metadata", "subject"),
    [
        ({"a" * 65: "b"}, "A key of metadata must have a length of at most 64"),
        ({"a": "b" * 513}, "A value of metadata must have a length of at most 512"),
    ],
)
def test_bounds_of_keys_and_values_are_told_as_theirs(
    client: TestClient, metadata: dict[str, str], subject: str
):
    response = client.post("/v1/responses", json={"input": "Hi", "metadata": metadata})
    assert error_of(response)["message"] == f"{subject}."
    assert refused(response) == ("metadata", "invalid_value")
