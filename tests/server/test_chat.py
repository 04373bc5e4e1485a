"""Chat completions, streamed and whole, as clients read them."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.server.asking import USER, chat, complete, events, refused
from tests.server.fake import ANSWER, MODEL, FakeFrontend


def test_an_answer_has_the_shape_of_openai(client: TestClient):
    body = chat(client, model=MODEL).json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == MODEL
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["index"] == 0
    assert choice["logprobs"] is None


def test_usage_is_always_there_and_counts_what_was_reused(client: TestClient):
    cold = chat(client).json()["usage"]
    warm = chat(client).json()["usage"]
    prompt = cold["prompt_tokens"]
    assert cold["prompt_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": prompt}
    assert warm["prompt_tokens_details"] == {"cached_tokens": prompt - 1, "cache_write_tokens": 1}
    assert warm["total_tokens"] == warm["prompt_tokens"] + warm["completion_tokens"]
    assert warm["completion_tokens"] == len(ANSWER)


def test_several_answers_count_their_prompt_once(client: TestClient):
    one = chat(client).json()["usage"]
    body = chat(client, n=3).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in body["choices"]] == [
        f"{ANSWER}{index}" for index in range(3)
    ]
    assert body["usage"]["prompt_tokens"] == one["prompt_tokens"]
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == one["prompt_tokens"] - 1
    assert body["usage"]["completion_tokens"] == 3 * (len(ANSWER) + 1)


def test_a_stream_says_role_then_text_then_reason(client: TestClient):
    response = chat(client, stream=True)
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    chunks = events(response)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert "".join(delta["content"] for delta in deltas[1:-1]) == ANSWER
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


def test_each_streamed_choice_begins_with_its_role_and_ends_once(client: TestClient):
    chunks = [chunk["choices"][0] for chunk in events(chat(client, stream=True, n=2))]
    for index in range(2):
        own = [chunk for chunk in chunks if chunk["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(chunk["delta"].get("content", "") for chunk in own)
        assert text == f"{ANSWER}{index}"
        assert [chunk["finish_reason"] for chunk in own].count("stop") == 1


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_a_stream_has_no_usage_unless_asked(client: TestClient, options: dict | None):
    for ask in (chat, complete):
        for chunk in events(ask(client, stream=True, stream_options=options)):
            assert "usage" not in chunk
            assert len(chunk["choices"]) == 1


def test_usage_comes_once_and_last_with_no_choices(client: TestClient):
    chunks = events(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(ANSWER)
    assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    for chunk in chunks[:-1]:
        assert chunk["usage"] is None
        assert chunk["choices"]


def test_usage_can_come_with_every_chunk(client: TestClient):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(chat(client, stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == len(ANSWER)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_numbers_even_where_the_model_says_never(
    client: TestClient, frontend: FakeFrontend, stream: bool
):
    frontend.logprob = float("nan")
    response = chat(client, logprobs=True, top_logprobs=1, stream=stream)
    if stream:
        shown = [
            token
            for chunk in events(response)
            for token in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
        ]
    else:
        shown = response.json()["choices"][0]["logprobs"]["content"]
    assert [each["token"] for each in shown] == list(ANSWER)
    assert shown[0] == {
        "token": "H",
        "logprob": -9999.0,
        "bytes": [72],
        "top_logprobs": [{"token": "?", "logprob": -9999.0, "bytes": [63]}],
    }


def test_every_sampling_field_reaches_the_engine(client: TestClient, frontend: FakeFrontend):
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 3,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "min_tokens": 1,
        "ignore_eos": True,
    }
    chat(
        client,
        **fields,
        max_completion_tokens=4,
        max_tokens=99,
        logit_bias={"5": 1},
        stop_token_ids=[9],
        stop="x",
        include_stop_str_in_output=True,
        skip_special_tokens=False,
    )
    [request] = frontend.requests
    for name, value in fields.items():
        assert getattr(request.sampling, name) == value, name
    assert request.sampling.max_tokens == 4
    assert request.sampling.logit_bias == {5: 1.0}
    assert request.sampling.stop_token_ids == (9,)
    assert request.stop == ("x",)
    assert request.include_stop_str_in_output
    assert not request.skip_special_tokens


def test_null_means_absent_everywhere(client: TestClient, frontend: FakeFrontend):
    chat(client)
    names = ["n", "stop", "seed", "temperature", "stream", "stream_options", "tools", "logprobs"]
    names += ["max_tokens", "logit_bias", "cache_salt", "priority", "response_format", "user"]
    response = chat(client, **dict.fromkeys(names))
    assert response.status_code == 200
    assert "x-radixserve-ignored" not in response.headers
    first, second = frontend.requests
    assert (first.sampling, first.n, first.stop) == (second.sampling, second.n, second.stop)


def test_the_models_own_defaults_hold_until_the_client_says_otherwise(
    client: TestClient, frontend: FakeFrontend
):
    card = frontend.card
    frontend.card = type(card)(
        name=MODEL,
        max_model_len=200,
        vocab_size=256,
        created=1,
        defaults={"temperature": 0.3, "top_k": 20},
    )
    chat(client)
    chat(client, temperature=0)
    own, asked = frontend.requests
    assert (own.sampling.temperature, own.sampling.top_k) == (0.3, 20)
    assert (asked.sampling.temperature, asked.sampling.top_k) == (0.0, 20)


def test_a_dialogue_with_tool_calls_and_reasoning_can_be_replayed(client: TestClient):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": "42", "reasoning_content": "hm"},
        *USER,
    ]
    response = chat(client, messages=messages)
    assert response.status_code == 200
    assert "x-radixserve-ignored" not in response.headers


def test_a_final_message_can_be_continued(client: TestClient, frontend: FakeFrontend):
    messages = [*USER, {"role": "assistant", "content": "Well,"}]
    assert chat(client, messages=messages, continue_final_message=True).status_code == 200
    [request] = frontend.requests
    assert request.continuation
    assert bytes(request.prompt[3::4]).endswith(b"Well,")
    both = chat(client, messages=messages, continue_final_message=True, add_generation_prompt=True)
    assert refused(both)[0] == "continue_final_message"


def test_template_arguments_reach_the_template(client: TestClient, frontend: FakeFrontend):
    chat(client, chat_template_kwargs={"enable_thinking": False})
    assert b"enable_thinking" in bytes(frontend.requests[0].prompt[3::4])


def test_a_salt_parts_what_would_be_shared(client: TestClient):
    def cached(**fields: object) -> int:
        usage = chat(client, **fields).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached() == 0
    assert cached() > 0
    assert cached(cache_salt="mine") == 0
    assert cached(cache_salt="mine") > 0
    assert cached(cache_salt="yours") == 0


@pytest.mark.parametrize(("word", "number"), [("high", -1), ("normal", 0), ("LOW", 1)])
def test_priority_may_be_said_in_words(
    client: TestClient, frontend: FakeFrontend, word: str, number: int
):
    chat(client, headers={"x-radixserve-priority": word})
    assert frontend.requests[0].priority == number


def test_a_priority_without_effect_is_listed(client: TestClient):
    assert chat(client, priority=5).headers["x-radixserve-ignored"] == "priority"
    assert "x-radixserve-ignored" not in chat(client, priority=0).headers


def test_priority_said_twice_or_in_no_known_word_is_refused(client: TestClient):
    header = "x-radixserve-priority"
    assert refused(chat(client, headers={header: "urgent"}))[0] == header
    assert refused(chat(client, headers={header: "high"}, priority=1))[0] == "priority"
