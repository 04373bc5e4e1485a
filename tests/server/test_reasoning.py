"""Reasoning apart from the answer, streamed and whole."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.server.app import create_app
from radixserve.server.service import Settings
from tests.server.asking import USER, accumulated, chat, events, refused
from tests.server.fake import THOUGHT, FakeFrontend, OpeningTokenizer, saying
from tests.text.parsing.samples import SAMPLES, TOOLS

CHANNELS = SAMPLES["harmony text"].text


def told(client: TestClient, *, stream: bool = False, **fields: Any) -> dict[str, Any]:
    """The message, in the same form streamed and whole."""
    response = chat(client, stream=stream, **fields)
    choice = accumulated(response) if stream else response.json()["choices"][0]
    return dict(choice["message"])


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_has_both_names_and_no_part_in_the_content(stream: bool):
    with saying(THOUGHT, "none", "think") as (client, _):
        message = told(client, stream=stream)
    assert message == {
        "role": "assistant",
        "content": "Hello!",
        "refusal": None,
        "reasoning": "One.\n\nTwo.",
        "reasoning_content": "One.\n\nTwo.",
    }


def test_reasoning_is_streamed_as_it_comes():
    with saying(THOUGHT, "none", "think") as (client, _):
        deltas = [chunk["choices"][0]["delta"] for chunk in events(chat(client, stream=True))]
    thoughts = [delta["reasoning"] for delta in deltas if "reasoning" in delta]
    assert len(thoughts) > 5
    assert [delta.get("reasoning_content") for delta in deltas if "reasoning" in delta] == thoughts
    kinds = ["reasoning" if "reasoning" in delta else "content" for delta in deltas[1:-1]]
    assert kinds == sorted(kinds, reverse=True)


@pytest.mark.parametrize(
    ("text", "style", "tokens"),
    [
        (THOUGHT, "think", len("\nOne.\n\nTwo.\n</think>")),
        (CHANNELS, "gpt_oss", len("One.<|end|>Two.<|end|>")),
        ("Hello!", "think", 0),
        (THOUGHT, "none", 0),
    ],
)
def test_usage_counts_the_tokens_of_reasoning(text: str, style: str, tokens: int):
    with saying(text, "none", style) as (client, _):
        for fields in ({}, {"include_reasoning": False}):
            usage = chat(client, **fields).json()["usage"]
            assert usage["completion_tokens_details"] == {
                "reasoning_tokens": tokens,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            }
            options = {"include_usage": True}
            chunks = events(chat(client, stream=True, stream_options=options, **fields))
            details = chunks[-1]["usage"]["completion_tokens_details"]
            assert details["reasoning_tokens"] == tokens


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_can_be_left_out(stream: bool):
    for text, style in ((THOUGHT, "think"), (CHANNELS, "gpt_oss")):
        with saying(text, "none", style) as (client, _):
            for fields in ({}, {"separate_reasoning": False}):
                message = told(client, stream=stream, include_reasoning=False, **fields)
                assert message == {"role": "assistant", "content": "Hello!", "refusal": None}


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_can_stay_in_the_text(stream: bool):
    with saying(THOUGHT, "none", "think") as (client, frontend):
        message = told(client, stream=stream, separate_reasoning=False)
        assert message == {"role": "assistant", "content": THOUGHT, "refusal": None}
        assert frontend.requests[0].markers == ("<think>", "</think>")
    with saying(CHANNELS, "none", "gpt_oss") as (client, _):
        message = told(client, stream=stream, separate_reasoning=False)
        assert message["content"] == "One.\nTwo.\nHello!"
        assert "reasoning" not in message


def test_reasoning_that_is_cut_is_reasoning():
    with saying(THOUGHT, "none", "think") as (client, _):
        [choice] = chat(client, max_tokens=11).json()["choices"]
    assert choice["message"]["reasoning"] == "One"
    assert choice["message"]["content"] == ""
    assert choice["finish_reason"] == "length"


@pytest.fixture
def opening() -> FakeFrontend:
    frontend = FakeFrontend("One.\n</think>\n\nTwo.", max_model_len=1000)
    frontend.tokenizer = OpeningTokenizer()
    return frontend


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_begins_inside_of_reasoning_where_the_template_has_begun_it(
    opening: FakeFrontend, stream: bool
):
    with TestClient(create_app(opening)) as client:
        message = told(client, stream=stream)
        assert (message["reasoning"], message["content"]) == ("One.", "Two.")
        # A user who writes the marker is not the template.
        user = [{"role": "user", "content": "What is <think>"}]
        off = {"enable_thinking": False}
        opening.answer = "A tag."
        message = told(client, stream=stream, messages=user, chat_template_kwargs=off)
        assert message["content"] == "A tag."
        assert "reasoning" not in message


@pytest.mark.parametrize(
    ("begun", "reasoning", "content"),
    [
        ("<think>\nHm", "One.", "Two."),
        ("<think>\nHm\n</think>\n\nSo", None, "One.\n</think>\n\nTwo."),
        ("So", None, "One.\n</think>\n\nTwo."),
    ],
)
def test_an_answer_that_the_client_began_goes_on_where_it_was(
    opening: FakeFrontend, begun: str, reasoning: str | None, content: str
):
    messages = [*USER, {"role": "assistant", "content": begun}]
    with TestClient(create_app(opening)) as client:
        message = told(client, messages=messages, continue_final_message=True)
    assert (message.get("reasoning"), message["content"]) == (reasoning, content)


@pytest.mark.parametrize(
    ("effort", "said"),
    [
        ("none", {"reasoning_effort": "none", "enable_thinking": False}),
        ("high", {"reasoning_effort": "high", "enable_thinking": True}),
    ],
)
def test_an_effort_becomes_what_the_template_knows(
    opening: FakeFrontend, effort: str, said: dict[str, Any]
):
    with TestClient(create_app(opening)) as client:
        response = chat(client, reasoning_effort=effort)
        assert "x-radixserve-ignored" not in response.headers
        assert opening.requests[0].prompt == opening.tokenizer.encode(
            opening.tokenizer.render_chat(USER, add_generation_prompt=True, template_kwargs=said)
        )
        kept = {"reasoning_effort": "low"}
        chat(client, reasoning_effort=effort, chat_template_kwargs=kept)
        assert opening.requests[1].prompt == opening.tokenizer.encode(
            opening.tokenizer.render_chat(
                USER, add_generation_prompt=True, template_kwargs={**said, **kept}
            )
        )


def test_an_effort_that_the_template_lacks_words_for_is_the_nearest_one():
    frontend = FakeFrontend(CHANNELS, max_model_len=1000)
    frontend.tokenizer.chat_template_source = "<|channel|>{{ reasoning_effort }}"
    with TestClient(create_app(frontend)) as client:
        chat(client, reasoning_effort="max")
        chat(client, chat_template_kwargs={"reasoning_effort": "high"})
    first, second = frontend.requests
    assert first.prompt == second.prompt


def test_an_effort_without_effect_is_listed_and_a_wrong_one_refused(client: TestClient):
    assert (
        chat(client, reasoning_effort="low").headers["x-radixserve-ignored"] == "reasoning_effort"
    )
    assert refused(chat(client, reasoning_effort="hard")) == ("reasoning_effort", "invalid_value")


def test_thought_and_called(frontend: FakeFrontend):
    sample = SAMPLES["thought and called"]
    with saying(sample.text, sample.tools, sample.style) as (client, _):
        message = told(client, tools=TOOLS)
        assert message["reasoning"] == sample.reasoning
        assert message["content"] == sample.content
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["run"]


def test_logprobs_of_all_tokens_are_told_whatever_they_were(frontend: FakeFrontend):
    frontend.answer = THOUGHT
    settings = Settings(reasoning_parser="think")
    with TestClient(create_app(frontend, settings=settings)) as client:
        chunks = events(chat(client, stream=True, logprobs=True))
        [choice] = chat(client, logprobs=True).json()["choices"]
    shown = [
        token["token"]
        for chunk in chunks
        for token in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert "".join(shown) == THOUGHT
    assert [each["token"] for each in choice["logprobs"]["content"]] == shown
