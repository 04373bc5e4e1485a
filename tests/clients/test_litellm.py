"""litellm: both of its providers for servers such as this one."""

from __future__ import annotations

import json
from typing import Any

import litellm
import pytest

from tests.clients.asked import CALLS, HANG, KEY, LENGTH, MODEL, QUESTION, TOO_LONG, TOOLS

pytestmark = pytest.mark.clients
PROVIDERS = ("openai", "hosted_vllm")


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(provider: str, url: str, content: str = QUESTION, **fields: Any) -> Any:
    chosen: dict[str, Any] = {"temperature": 0, "max_tokens": LENGTH, **fields}
    return litellm.completion(
        model=f"{provider}/{MODEL}",
        api_base=url,
        api_key=KEY,
        timeout=HANG,
        num_retries=0,
        messages=[{"role": "user", "content": content}],
        **chosen,
    )


def test_a_stream_says_what_a_whole_answer_does_with_its_usage(url: str, provider: str):
    whole = ask(provider, url)
    said = whole.choices[0].message.content
    assert said
    again = ask(provider, url)
    assert again.usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1
    chunks = list(ask(provider, url, stream=True, stream_options={"include_usage": True}))
    streamed = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(streamed) == said
    ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [end for end in ends if end] == [whole.choices[0].finish_reason]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_tools_are_called_whole_and_streamed(caller: str, provider: str):
    whole = ask(provider, caller, tools=TOOLS, max_tokens=1000)
    chunks = list(ask(provider, caller, tools=TOOLS, max_tokens=1000, stream=True))
    built = litellm.stream_chunk_builder(chunks)
    for answer in (whole, built):
        [choice] = answer.choices
        calls = choice.message.tool_calls
        found = [(call.function.name, json.loads(call.function.arguments)) for call in calls]
        assert found == CALLS
        assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize("streamed", [False, True])
def test_too_long_a_prompt_is_known_for_what_it_is(url: str, provider: str, streamed: bool):
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(provider, url, TOO_LONG, stream=streamed)


def test_other_faults_have_their_own_names(url: str, provider: str):
    with pytest.raises(litellm.BadRequestError, match="top_p"):
        ask(provider, url, top_p=7)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(
            model=f"{provider}/other",
            api_base=url,
            api_key=KEY,
            num_retries=0,
            messages=[{"role": "user", "content": "Hi"}],
        )


def test_a_form_is_kept(url: str, provider: str):
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["good", "bad"]}},
        "required": ["mood"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "mood", "schema": schema}}
    answer = ask(provider, url, response_format=form, max_tokens=100)
    assert json.loads(answer.choices[0].message.content)["mood"] in ("good", "bad")


def test_embeddings_come_in_order(url: str, provider: str):
    found = litellm.embedding(
        model=f"{provider}/{MODEL}", input=["a", "b"], api_base=url, api_key=KEY
    )
    assert [each["index"] for each in found.data] == [0, 1]
    assert len(found.data[0]["embedding"]) == 64
    assert found.usage.prompt_tokens == 2
