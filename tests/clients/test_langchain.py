"""langchain-openai: messages, streams, usage, tools, overflow, embeddings."""

from __future__ import annotations

import asyncio
import math
from functools import reduce
from operator import add
from typing import Any, Literal

import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict

from tests.clients.asked import CALLS, HANG, KEY, LENGTH, MODEL, QUESTION, TOO_LONG, TOOLS

pytestmark = pytest.mark.clients


def chat(url: str, **settings: Any) -> ChatOpenAI:
    chosen = {"model": MODEL, "temperature": 0, "max_tokens": LENGTH, "timeout": HANG, **settings}
    return ChatOpenAI(base_url=url, api_key=KEY, max_retries=0, **chosen)


def joined(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    return reduce(add, chunks)


def test_usage_tells_what_was_reused_and_what_was_left(url: str):
    llm = chat(url)
    first = llm.invoke(f"{QUESTION} One?").usage_metadata
    again = llm.invoke(f"{QUESTION} One?").usage_metadata
    assert first is not None
    assert again is not None
    prompt = first["input_tokens"]
    assert again["input_token_details"] == {"cache_read": prompt - 1, "cache_creation": 1}
    assert first["input_token_details"]["cache_creation"] > 1
    assert first["total_tokens"] == prompt + first["output_tokens"]


def test_a_stream_says_what_a_whole_answer_does_with_its_usage(url: str):
    llm = chat(url, stream_usage=True)
    whole = llm.invoke(QUESTION)
    streamed = joined(list(llm.stream(QUESTION)))
    assert whole.content
    assert streamed.content == whole.content
    assert streamed.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"]
    assert streamed.usage_metadata is not None
    assert whole.usage_metadata is not None
    assert streamed.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert streamed.usage_metadata["input_token_details"]["cache_read"] > 0

    async def asked() -> list[AIMessageChunk]:
        return [chunk async for chunk in llm.astream(QUESTION)]

    assert joined(asyncio.run(asked())).content == whole.content


def test_logprobs_are_read(url: str):
    answer = chat(url, logprobs=True, top_logprobs=2).invoke(QUESTION)
    entries = answer.response_metadata["logprobs"]["content"]
    assert entries
    assert all(len(each["top_logprobs"]) == 2 for each in entries)


def test_bound_tools_are_called_whole_and_streamed(caller: str):
    llm = chat(caller, max_tokens=1000).bind_tools(TOOLS)
    whole = llm.invoke(QUESTION)
    streamed = joined(list(llm.stream(QUESTION)))
    assert isinstance(whole, AIMessage)
    for message in (whole, streamed):
        assert [(each["name"], each["args"]) for each in message.tool_calls] == CALLS
        assert len({each["id"] for each in message.tool_calls}) == 3
        assert not message.invalid_tool_calls
        assert message.response_metadata["finish_reason"] == "tool_calls"


class Verdict(BaseModel):
    """What is thought of it."""

    model_config = ConfigDict(extra="forbid")  # or a model that talks at random goes on and on
    mood: Literal["good", "bad"]
    sure: bool


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_what_was_asked_for(url: str, method: Any):
    llm = chat(url, max_tokens=200).with_structured_output(Verdict, method=method)
    assert isinstance(llm.invoke(QUESTION), Verdict)


@pytest.mark.parametrize("streamed", [False, True])
def test_too_long_a_prompt_is_known_for_what_it_is(url: str, streamed: bool):
    llm = chat(url)
    with pytest.raises(ContextOverflowError):
        list(llm.stream(TOO_LONG)) if streamed else llm.invoke(TOO_LONG)


def test_completions_are_answered(url: str):
    llm = OpenAI(
        base_url=url, api_key=KEY, model=MODEL, temperature=0, max_tokens=LENGTH, max_retries=0
    )
    whole = llm.invoke(QUESTION)
    assert whole
    assert "".join(llm.stream(QUESTION)) == whole
    assert llm.batch([QUESTION, QUESTION]) == [whole, whole]


def test_embeddings_are_vectors_of_length_one(url: str):
    made = OpenAIEmbeddings(
        base_url=url, api_key=KEY, model=MODEL, check_embedding_ctx_length=False, max_retries=0
    )
    texts = [f"Document {number}" for number in range(70)]
    found = made.embed_documents(texts)
    assert len(found) == len(texts)
    assert made.embed_query(texts[3]) == pytest.approx(found[3], abs=1e-5)
    assert math.hypot(*found[0]) == pytest.approx(1)
    assert found[0] != found[1]
