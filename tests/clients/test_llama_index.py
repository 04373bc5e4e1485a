"""llama-index: ``OpenAILike``, as a chat model and as one that completes."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.clients.asked import CALLS, HANG, KEY, LENGTH, MODEL, QUESTION, TOO_LONG

pytestmark = pytest.mark.clients
MESSAGES = [
    ChatMessage(role="system", content="Be brief."),
    ChatMessage(role="user", content=QUESTION),
]


def like(url: str, **settings: Any) -> OpenAILike:
    chosen = {"temperature": 0, "max_tokens": LENGTH, "is_chat_model": True, **settings}
    return OpenAILike(
        model=MODEL,
        api_base=url,
        api_key=KEY,
        context_window=2048,
        max_retries=0,
        timeout=HANG,
        **chosen,
    )


def test_a_chat_is_answered_whole_and_streamed(url: str):
    llm = like(url)
    whole = llm.chat(MESSAGES)
    assert whole.message.content
    *_, last = llm.stream_chat(MESSAGES)
    assert last.message.content == whole.message.content

    async def asked() -> str:
        parts = [part async for part in await llm.astream_chat(MESSAGES)]
        return "".join(part.delta or "" for part in parts)

    assert asyncio.run(asked()) == whole.message.content


def test_a_prompt_is_completed_whole_and_streamed(url: str):
    llm = like(url, is_chat_model=False)
    whole = llm.complete(QUESTION)
    assert whole.text
    assert "".join(part.delta or "" for part in llm.stream_complete(QUESTION)) == whole.text


def test_tools_are_called_whole_and_streamed(caller: str):
    def get_weather(city: str, days: int = 1) -> str:
        """The weather of a city."""
        return f"{city} {days}"

    def run(code: str, exact: bool = False) -> str:
        """Run a program."""
        return code

    def now() -> str:
        """The time."""
        return "12:00"

    tools = [FunctionTool.from_defaults(each) for each in (get_weather, run, now)]
    llm = like(caller, is_function_calling_model=True, max_tokens=1000)
    whole = llm.chat_with_tools(tools, user_msg=QUESTION, allow_parallel_tool_calls=True)
    *_, last = llm.stream_chat_with_tools(tools, user_msg=QUESTION, allow_parallel_tool_calls=True)
    for answer in (whole, last):
        calls = llm.get_tool_calls_from_response(answer)
        assert [(call.tool_name, call.tool_kwargs) for call in calls] == CALLS


def test_too_long_a_prompt_says_what_it_is(url: str):
    with pytest.raises(openai.BadRequestError) as caught:
        like(url).complete(TOO_LONG)
    assert caught.value.code == "context_length_exceeded"
