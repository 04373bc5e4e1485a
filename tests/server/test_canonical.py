"""``--canonical``: faithful unless the operator says otherwise; told where it changed a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from radixserve.server.service import Settings
from radixserve.text.chat_template import ChatTemplate
from tests.server.asking import CHAT
from tests.server.stack import Stack, cached, stack, usage
from tests.text.tiny import HERMES

HEADER = "x-radixserve-canonical"
FORMS = "tools,json,volatile"


def tool(name: str, *properties: str) -> dict[str, Any]:
    schema = {"properties": {each: {} for each in properties}, "type": "object"}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


ONE = [tool("a", "x", "y"), tool("b")]
SHUFFLED = [tool("b"), tool("a", "y", "x")]
USER = {"role": "user", "content": "Hi"}


def messages(time: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": f"Be kind.\nCurrent time: {time}\nBe brief."}, USER]


def served(
    directory: Path, canonical: str, asking: Callable[[Stack], Coroutine[Any, Any, None]]
) -> None:
    """Ask a server of a model whose template writes tools as JSON."""

    async def scenario() -> None:
        settings = Settings(canonical=canonical, tool_call_parser="none")
        async with stack(directory, server=settings) as server:
            templates: Any = server.engine.tokenizer._templates
            templates["default"] = ChatTemplate(HERMES, {})
            await asking(server)

    asyncio.run(scenario())


async def ids(server: Stack, **fields: Any) -> tuple[list[int], str | None]:
    answer = await server.ask("/tokenize", **fields)
    return answer.json()["tokens"], answer.headers.get(HEADER)


def test_by_default_a_prompt_is_what_the_client_has_sent(tmp_path: Path):
    async def asking(server: Stack) -> None:
        first = await server.ask(CHAT, messages=messages("12:30"), tools=ONE, max_tokens=1)
        again = await server.ask(CHAT, messages=messages("12:30"), tools=SHUFFLED, max_tokens=1)
        assert cached(again) < usage(first)["prompt_tokens"] / 2
        assert HEADER not in again.headers
        one, _ = await ids(server, messages=[USER], tools=ONE)
        other, _ = await ids(server, messages=[USER], tools=SHUFFLED)
        assert one != other

    served(tmp_path, "", asking)


@pytest.mark.parametrize("stream", [False, True])
def test_the_same_tools_in_any_order_at_any_time_are_one_prompt(tmp_path: Path, stream: bool):
    fields: dict[str, Any] = {"max_tokens": 1}
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}

    async def asking(server: Stack) -> None:
        first = await server.ask(CHAT, messages=messages("12:30"), tools=ONE, **fields)
        assert first.headers[HEADER] == "volatile"
        again = await server.ask(CHAT, messages=messages("12:31"), tools=SHUFFLED, **fields)
        assert again.headers[HEADER] == "tools, json, volatile"
        assert cached(again) == usage(again)["prompt_tokens"] - 1
        plain = await server.ask(CHAT, messages=[USER], tools=ONE, **fields)
        assert HEADER not in plain.headers
        one, _ = await ids(server, messages=[USER], tools=ONE)
        other, told = await ids(server, messages=[USER], tools=SHUFFLED)
        assert one == other
        assert told == "tools, json"

    served(tmp_path, FORMS, asking)


def test_anthropics_api_and_responses_tell_it_too(tmp_path: Path):
    async def asking(server: Stack) -> None:
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("b", "a")]
        fields: dict[str, Any] = {"messages": [USER], "system": "Now: 12:30\nHi", "tools": tools}
        made = await server.ask("/v1/messages", max_tokens=1, **fields)
        counted = await server.ask("/v1/messages/count_tokens", **fields)
        assert made.headers[HEADER] == counted.headers[HEADER] == "tools, volatile"
        spent = made.json()["usage"]
        counts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert counted.json()["input_tokens"] == sum(spent[name] for name in counts)
        fields = {"input": "Hi", "instructions": "Now: 12:30\nHi", "max_output_tokens": 1}
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            answer = await server.ask(path, **fields)
            assert answer.headers[HEADER] == "volatile", answer.text

    served(tmp_path, FORMS, asking)


def test_what_is_computed_beforehand_has_the_form_of_the_chats_to_come(tmp_path: Path):
    async def asking(server: Stack) -> None:
        system = messages("12:30")[:1]
        for path, method in (("/v1/cache/prewarm", "POST"), ("/v1/cache/prefixes/kind", "PUT")):
            fields = {"messages": system, "tools": SHUFFLED, "cache_salt": method}
            warm = await server.client.request(method, path, json=fields)
            assert warm.headers[HEADER] == "tools, json, volatile"
            asked = {**fields, "messages": messages("12:31"), "tools": ONE, "max_tokens": 1}
            assert cached(await server.ask(CHAT, **asked)) >= warm.json()["tokens"] > 20

    served(tmp_path, FORMS, asking)


def test_a_marked_tool_keeps_those_before_it_wherever_they_stand(tmp_path: Path):
    """The last one that was sent is the first of the prompt."""

    async def asking(server: Stack) -> None:
        last = {**tool("a", "x"), "prompt_cache_breakpoint": {"mode": "explicit"}}
        kept = []
        for tools in ([tool("b"), last], [last, tool("b")]):
            made = await server.ask(CHAT, messages=[USER], tools=tools, max_tokens=1)
            kept.append(usage(made)["prompt_tokens_details"]["kept_tokens"])
        assert kept[0] > kept[1] > 0

    served(tmp_path, FORMS, asking)


def test_errors_name_a_tool_by_the_place_at_which_it_was_sent(tmp_path: Path):
    async def asking(server: Stack) -> None:
        broken = {"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}
        answer = await server.ask(CHAT, messages=[USER], tools=[tool("b"), broken])
        error = answer.json()["error"]
        assert error["param"] == "tools.1.function.parameters.type"
        assert error["message"] == f"{error['param']} must be one of object."

    served(tmp_path, FORMS, asking)
