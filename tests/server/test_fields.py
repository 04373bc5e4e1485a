"""Honoured, refused, or listed: nothing that a client sends is dropped in silence."""

from __future__ import annotations

import msgspec
import pytest
from starlette.testclient import TestClient

from radixserve.server import fields, limits
from radixserve.server.wire import ChatRequest, CompletionRequest
from tests.server.asking import USER, chat, complete, events, refused, send

HEADER = "x-radixserve-ignored"
HARMLESS = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "cache_control",
    "prediction",
    "verbosity",
    "stream_reasoning",
    "stream_interval",
    "truncation_side",
    "request_id",
    "rid",
    "kv_transfer_params",
    "vllm_xargs",
    "nvext",
)
"""What clients of other servers send, and what changes no answer."""


def test_no_field_is_both_honoured_and_refused():
    for body in (ChatRequest, CompletionRequest):
        assert not body.refused.keys() & set(body.__struct_fields__)


@pytest.mark.parametrize("name", sorted(ChatRequest.refused))
def test_what_would_change_the_answer_is_refused_by_name(client: TestClient, name: str):
    assert refused(chat(client, **{name: {"some": "thing"}})) == (name, "unsupported_parameter")
    for neutral in (None, *ChatRequest.refused[name]):
        response = chat(client, **{name: neutral})
        assert response.status_code == 200
        assert HEADER not in response.headers


@pytest.mark.parametrize("name", sorted(CompletionRequest.refused))
def test_completions_refuse_it_too(client: TestClient, name: str):
    assert refused(complete(client, **{name: [1]})) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("modalities", ["text", "audio"]),
        ("lora_path", "x"),
        ("structural_tag", {"structures": [{"begin": "a" * 1000}]}),
    ],
)
def test_values_that_ask_for_something_are_no_neutral_ones(
    client: TestClient, name: str, value: object
):
    assert refused(chat(client, **{name: value})) == (name, "unsupported_parameter")


def test_a_value_that_cannot_be_read_is_no_neutral_one(client: TestClient):
    answer = send(client, '{"messages": [{"role": "user", "content": "Hi"}], "documents": 1e999}')
    assert refused(answer) == ("documents", "unsupported_parameter")


def test_what_changes_nothing_is_listed(client: TestClient):
    response = chat(client, user="u", metadata={"a": "b"}, temprature=1)
    assert response.headers[HEADER] == "metadata, temprature, user"
    stream = chat(client, user="u", stream=True, stream_options={"include_obfuscation": False})
    assert stream.headers[HEADER] == "stream_options.include_obfuscation, user"
    assert events(stream)
    assert HEADER not in chat(client).headers


def test_values_of_known_fields_are_not_copied_to_look_for_unknown_ones(monkeypatch):
    looked = []

    def watched(raw: msgspec.Raw) -> bool:
        looked.append(len(raw))
        return limits.is_null(raw)

    monkeypatch.setattr(fields, "is_null", watched)
    large = msgspec.Raw(b'"' + b"a" * 1000 + b'"')
    raws = {
        "messages": large,
        "stream_options": msgspec.Raw(b"null"),
        "temprature": msgspec.Raw(b"1"),
    }
    assert fields.triage(raws, ChatRequest) == ["temprature"]
    assert looked == [1]


@pytest.mark.parametrize("name", HARMLESS)
def test_every_harmless_field_is_listed(client: TestClient, name: str):
    assert chat(client, **{name: {}}).headers[HEADER] == name
    assert complete(client, **{name: 1}).headers[HEADER] == name


def test_cache_markers_on_content_parts_are_harmless_and_listed(client: TestClient):
    part = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    response = chat(client, messages=[{"role": "user", "content": [part]}, *USER])
    assert response.headers[HEADER] == "messages.content.cache_control"


def test_names_cannot_break_the_header(client: TestClient):
    response = chat(client, **{"a\r\nset-cookie: x": 1, "ü, b": 1, "": 1})
    assert response.status_code == 200
    assert "set-cookie" not in response.headers
    listed = response.headers[HEADER].split(", ")
    assert len(listed) == 3
    many = chat(client, **{f"k{i}": 1 for i in range(100)}).headers[HEADER]
    assert many.endswith(", ...")


HONOURED, REFUSED, LISTED = "honoured", "refused", "listed"
SENT: dict[str, tuple[object, str, str]] = {
    # OpenAI's
    "audio": ({"voice": "alloy"}, REFUSED, REFUSED),
    "frequency_penalty": (0.5, HONOURED, HONOURED),
    "function_call": ({"name": "f"}, REFUSED, REFUSED),
    "functions": ([{"name": "f"}], REFUSED, REFUSED),
    "logit_bias": ({"65": 1}, HONOURED, HONOURED),
    "logprobs": (True, HONOURED, REFUSED),
    "max_completion_tokens": (5, HONOURED, REFUSED),
    "max_tokens": (5, HONOURED, HONOURED),
    "metadata": ({"a": "b"}, LISTED, LISTED),
    "modalities": (["audio"], REFUSED, REFUSED),
    "moderation": ("strict", REFUSED, REFUSED),
    "n": (2, HONOURED, HONOURED),
    "parallel_tool_calls": (False, HONOURED, LISTED),
    "prediction": ({"type": "content", "content": "Hi"}, LISTED, LISTED),
    "presence_penalty": (0.5, HONOURED, HONOURED),
    "prompt_cache_key": ("a", HONOURED, HONOURED),
    "prompt_cache_options": ({"mode": "explicit"}, HONOURED, HONOURED),
    "prompt_cache_retention": ("24h", HONOURED, HONOURED),
    "reasoning_effort": ("low", LISTED, LISTED),  # the fake model's template does not know it
    "response_format": ({"type": "json_object"}, HONOURED, HONOURED),
    "safety_identifier": ("a", LISTED, LISTED),
    "seed": (5, HONOURED, HONOURED),
    "service_tier": ("flex", LISTED, LISTED),
    "stop": (["a"], HONOURED, HONOURED),
    "store": (True, LISTED, LISTED),
    "stream": (True, HONOURED, HONOURED),
    "stream_options": ({"include_usage": True}, REFUSED, REFUSED),  # without a stream
    "temperature": (0.5, HONOURED, HONOURED),
    "tool_choice": ("required", REFUSED, REFUSED),  # without tools
    "tools": ([{"type": "function", "function": {"name": "f"}}], REFUSED, REFUSED),
    "top_p": (0.5, HONOURED, HONOURED),
    "user": ("a", LISTED, LISTED),
    "verbosity": ("low", LISTED, LISTED),
    "web_search_options": ({}, REFUSED, REFUSED),
    # vLLM's
    "top_k": (5, HONOURED, HONOURED),
    "min_p": (0.1, HONOURED, HONOURED),
    "repetition_penalty": (1.1, HONOURED, HONOURED),
    "stop_token_ids": ([5], HONOURED, HONOURED),
    "include_stop_str_in_output": (True, HONOURED, HONOURED),
    "ignore_eos": (True, HONOURED, HONOURED),
    "min_tokens": (2, HONOURED, HONOURED),
    "skip_special_tokens": (False, HONOURED, HONOURED),
    "spaces_between_special_tokens": (False, REFUSED, REFUSED),
    "truncate_prompt_tokens": (5, REFUSED, REFUSED),
    "truncation_side": ("left", LISTED, LISTED),
    "logprob_token_ids": ([5], REFUSED, REFUSED),
    "allowed_token_ids": ([5], HONOURED, HONOURED),
    "bad_words": (["a"], HONOURED, HONOURED),
    "echo": (True, REFUSED, HONOURED),
    "add_generation_prompt": (False, HONOURED, LISTED),
    "continue_final_message": (True, HONOURED, LISTED),
    "add_special_tokens": (True, HONOURED, HONOURED),
    "documents": ([{"text": "a"}], REFUSED, REFUSED),
    "chat_template": ("{{ 1 }}", REFUSED, REFUSED),
    "chat_template_kwargs": ({"a": 1}, HONOURED, LISTED),
    "structured_outputs": ({"choice": ["a"]}, HONOURED, HONOURED),
    "guided_json": ({}, HONOURED, HONOURED),
    "guided_regex": ("a", HONOURED, HONOURED),
    "guided_choice": (["a"], HONOURED, HONOURED),
    "guided_grammar": ('root ::= "a"', HONOURED, HONOURED),
    "priority": (1, LISTED, LISTED),  # the server does not order by it
    "request_id": ("a", LISTED, LISTED),
    "session_id": ("a", HONOURED, HONOURED),
    "session_end": (False, HONOURED, HONOURED),
    "keep_for": ("5m", HONOURED, HONOURED),
    "next_request_in": (8, HONOURED, HONOURED),
    "prewarm": (True, HONOURED, LISTED),
    "return_tokens_as_token_ids": (True, REFUSED, REFUSED),
    "return_token_ids": (True, HONOURED, HONOURED),
    "return_prompt_text": (True, REFUSED, REFUSED),
    "cache_salt": ("a", HONOURED, HONOURED),
    "explain": (True, HONOURED, HONOURED),
    "kv_transfer_params": ({}, LISTED, LISTED),
    "vllm_xargs": ({}, LISTED, LISTED),
    "repetition_detection": ({"max_pattern_size": 2}, REFUSED, REFUSED),
    "stream_interval": (2, LISTED, LISTED),
    "thinking_token_budget": (5, REFUSED, REFUSED),
    "include_reasoning": (False, HONOURED, REFUSED),
    # SGLang's
    "regex": ("a", HONOURED, HONOURED),
    "ebnf": ('root ::= "a"', HONOURED, HONOURED),
    "lora_path": ("a", REFUSED, REFUSED),
    "separate_reasoning": (False, HONOURED, LISTED),
    "keep_reasoning": (True, LISTED, LISTED),  # this tokenizer cannot be cut
    "stream_reasoning": (False, LISTED, LISTED),
    "rid": ("a", LISTED, LISTED),
    "extra_key": ("a", HONOURED, HONOURED),
    "no_stop_trim": (True, REFUSED, REFUSED),
    "stop_regex": ("a+", REFUSED, REFUSED),
    "input_ids": ([5], REFUSED, REFUSED),
    "return_cached_tokens_details": (True, HONOURED, HONOURED),
    # others'
    "suffix": ("a", REFUSED, REFUSED),
    "best_of": (2, REFUSED, HONOURED),
    "use_beam_search": (True, HONOURED, HONOURED),
    "length_penalty": (0.5, REFUSED, REFUSED),  # without a beam search, and so the next one
    "early_stopping": (True, REFUSED, REFUSED),
    "nvext": ({}, LISTED, LISTED),
    "no_such_field": (1, LISTED, LISTED),
}
"""What common clients send, and what becomes of it in chats and in completions."""


@pytest.mark.parametrize("name", SENT)
def test_whatever_common_clients_send_has_an_effect_or_is_told_of(client: TestClient, name: str):
    value, in_chat, in_completions = SENT[name]
    for ask, fate in ((chat, in_chat), (complete, in_completions)):
        response = ask(client, **{name: value})
        if fate == REFUSED:
            assert (refused(response)[0] or "").split(".")[0] == name
        else:
            assert response.status_code == 200, response.text
            assert response.headers.get(HEADER) == (name if fate == LISTED else None)


def test_every_field_that_is_honoured_is_in_that_table():
    needed = {"messages", "prompt", "model", "top_logprobs", "timeout", "cache"}
    elsewhere = {"json_schema", "grammar", "prompt_logprobs"}
    for struct in (ChatRequest, CompletionRequest):
        assert set(struct.__struct_fields__) <= SENT.keys() | needed | elsewhere
