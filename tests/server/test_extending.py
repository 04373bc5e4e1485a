"""The next prompt of a conversation extends the last one and its answer, token by token."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from radixserve.server.service import Settings
from radixserve.tokens import pack
from tests.server.asking import CHAT, HANG
from tests.server.conversing import (
    CALL,
    SAID,
    STRIPPING,
    THOUGHTS,
    TOOL,
    cached,
    extends,
    saying,
    turn,
    user,
    whole,
)
from tests.server.stack import usage

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


def test_answers_are_found_again_although_their_text_has_other_tokens(tmp_path):
    async def scenario() -> None:
        async with saying(tmp_path, SAID) as server:
            messages, last = [], None
            for index in range(len(SAID)):
                messages.append(user(f"Question {index}?"))
                body = await turn(server, messages)
                assert messages[-1]["content"] == SAID[index]
                assert last is None or extends(body, last)
                last = body

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_that_was_changed_has_the_tokens_of_its_text(tmp_path, stream: bool):
    async def scenario() -> None:
        async with saying(tmp_path, ["hello the", "hello"]) as server:
            messages = [user("Who?")]
            last = await turn(server, messages)
            messages[-1]["content"] += "re"
            response = await server.ask(
                CHAT,
                messages=[*messages, user("And?")],
                stream=stream,
                stream_options={"include_usage": True} if stream else None,
            )
            reused = usage(response)["prompt_tokens_details"]["cached_tokens"]
            # Both begin with "he", in tokens that differ.
            assert reused == last["usage"]["prompt_tokens"]

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_neither_another_salt_nor_a_cache_that_is_off_finds_the_answer(tmp_path):
    async def scenario() -> None:
        async with saying(tmp_path, ["hello the"] * 5) as server:
            messages = [user("Who?")]
            last = await turn(server, messages)
            messages.append(user("And?"))
            for fields in ({"cache_salt": "other"}, {"cache": {"mode": "off"}}):
                body = await turn(server, list(messages), **fields)
                assert body["prompt_token_ids"][: len(whole(last))] != whole(last)
            body = await turn(server, list(messages), cache={"mode": "read-only"})
            assert extends(body, last)
            await server.client.post("/reset_prefix_cache")
            body = await turn(server, messages)
            assert (cached(body), extends(body, last)) == (0, False)

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_the_messages_api_counts_and_reuses_what_was_generated(tmp_path):
    async def scenario() -> None:
        async with saying(tmp_path, SAID) as server:
            messages: list[dict[str, Any]] = []
            computed = 0
            for index in range(len(SAID)):
                messages.append(user(f"Question {index}?"))
                body = (await server.ask(MESSAGES, messages=messages, max_tokens=50)).json()
                count = (await server.ask(f"{MESSAGES}/count_tokens", messages=messages)).json()
                read = body["usage"]["cache_read_input_tokens"]
                assert read >= computed
                assert (read > 0) == (index > 0)
                # All but the token that ended the answer has been computed.
                computed = count["input_tokens"] + len(SAID[index].encode())
                messages.append({"role": "assistant", "content": body["content"]})

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_branches_from_one_response_share_its_pages_and_outlive_each_other(tmp_path):
    async def scenario() -> None:
        parent, ways = "hello the " * 12, 8
        async with saying(tmp_path, [parent, *["hello " * 20] * 9], num_pages=600) as server:
            first = (await server.ask(RESPONSES, input="Begin.")).json()
            shared = first["usage"]["input_tokens"] + len(parent.encode())

            async def branch(index: int) -> dict[str, Any]:
                body = await server.ask(
                    RESPONSES, input=f"{index} goes on.", previous_response_id=first["id"]
                )
                return dict(body.json())

            before = server.engine.stats()
            server.model.hold()
            branches = [asyncio.create_task(branch(index)) for index in range(ways)]
            while server.engine.stats().running < ways:
                await server.steps(1)
            taken = before.pages_free - server.engine.stats().pages_free
            # Each needs pages of its own for what it adds alone.
            assert 0 < taken < shared // 4 * ways // 2
            server.model.free()
            told = await asyncio.gather(*branches)
            for body in told:
                assert body["usage"]["input_tokens_details"]["cached_tokens"] >= shared
            await server.client.delete(f"{RESPONSES}/{told[0]['id']}")
            again = (
                await server.ask(RESPONSES, input="More.", previous_response_id=told[1]["id"])
            ).json()
            expected = told[1]["usage"]["total_tokens"] - 1
            assert again["usage"]["input_tokens_details"]["cached_tokens"] >= expected

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_an_instruction_to_sum_up_behind_the_history_finds_it_cached(tmp_path):
    async def scenario() -> None:
        async with saying(tmp_path, [*SAID, "sum"]) as server:
            messages: list[dict[str, Any]] = []
            for index in range(len(SAID)):
                messages.append(user(f"Question {index}?"))
                last = await turn(server, messages)
            messages.append(user("Sum up what was said."))
            body = await turn(server, messages)
            assert cached(body) >= 0.95 * len(whole(last))

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("opening", ["", "<think>\n"])
@pytest.mark.parametrize("how", ["request", "server"])
def test_reasoning_that_the_template_strips_is_kept_where_that_is_wanted(
    tmp_path, how: str, opening: str
):
    async def scenario() -> None:
        template = STRIPPING.replace("OPENING", opening)
        said = [each.removeprefix(opening) for each in THOUGHTS]
        settings = Settings(reasoning_parser="think", keep_reasoning=how == "server")
        fields = {"keep_reasoning": True} if how == "request" else {}
        async with saying(tmp_path, said, template=template, server=settings) as server:
            messages, last = [], None
            for index in range(len(said)):
                messages.append(user(f"Question {index}?"))
                body = await turn(server, messages, **fields)
                assert "think" not in messages[-1]["content"]
                assert last is None or extends(body, last)
                last = body

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("keep", [None, False])
def test_otherwise_the_template_has_its_way(tmp_path, keep: bool | None):
    async def scenario() -> None:
        template = STRIPPING.replace("OPENING", "")
        settings = Settings(reasoning_parser="think", keep_reasoning=keep is False)
        async with saying(tmp_path, THOUGHTS, template=template, server=settings) as server:
            messages = [user("Who?")]
            last = await turn(server, messages, keep_reasoning=keep)
            messages.append(user("And?"))
            shown = server.engine.tokenizer.encode_chat(messages)
            body = await turn(server, messages, keep_reasoning=keep)
            assert not extends(body, last)
            assert len(body["prompt_token_ids"]) == len(shown) // 4
            assert cached(body) >= last["usage"]["prompt_tokens"]

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_calls_stay_as_the_model_wrote_them_with_their_reasoning(tmp_path):
    async def scenario() -> None:
        said = [f"<think>\nLook.\n</think>\n\n{CALL}", "hello", "x"]
        settings = Settings(reasoning_parser="think", tool_call_parser="hermes")
        template = STRIPPING.replace("OPENING", "")
        async with saying(tmp_path, said, template=template, server=settings) as server:
            messages = [user("Who?")]
            fields = {"tools": [TOOL], "keep_reasoning": True}
            last = await turn(server, messages, **fields)
            [call] = messages[-1]["tool_calls"]
            # Clients may write the arguments anew.
            arguments = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
            call["function"]["arguments"] = arguments
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "Nobody."})
            body = await turn(server, messages, **fields)
            assert extends(body, last)
            messages.append(user("And?"))
            assert extends(await turn(server, messages, **fields), body)

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("sent", ["as told", "spaced", "as an object", "in another order"])
@pytest.mark.parametrize("said", ["", " Let me see.\n"])
def test_calls_stay_as_the_model_wrote_them_where_the_template_only_spells_them_otherwise(
    tmp_path, sent: str, said: str
):
    async def scenario() -> None:
        settings = Settings(tool_call_parser="hermes")
        template = STRIPPING.replace("OPENING", "")
        answers = [said + CALL, "hello the", "x"]
        async with saying(tmp_path, answers, template=template, server=settings) as server:
            messages = [user("Who?")]
            last = await turn(server, messages, tools=[TOOL])
            function = messages[-1]["tool_calls"][0]["function"]
            arguments = json.loads(function["arguments"])
            match sent:
                case "spaced":
                    function["arguments"] = json.dumps(arguments, indent=1)
                case "as an object":
                    function["arguments"] = arguments
                case "in another order":
                    function["arguments"] = dict(reversed(arguments.items()))
            id = messages[-1]["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": id, "content": "Nobody."})
            body = await turn(server, messages, tools=[TOOL])
            assert extends(body, last)
            messages.append(user("And?"))
            assert extends(await turn(server, messages, tools=[TOOL]), body)

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("thought", ["<think>\nLook.\n</think>\n\n", "<think></think>"])
@pytest.mark.parametrize("parser", ["think", "none"])
def test_calls_whose_reasoning_is_stripped_are_the_templates(tmp_path, thought: str, parser: str):
    async def scenario() -> None:
        settings = Settings(reasoning_parser=parser, tool_call_parser="hermes")
        template = STRIPPING.replace("OPENING", "")
        answers = [thought + CALL, f"hello {CALL}", "x"]
        async with saying(tmp_path, answers, template=template, server=settings) as server:
            messages = [user("Who?")]
            fields = {"tools": [TOOL]}
            last = await turn(server, messages, **fields)
            messages.append(user("And?"))
            shown = server.engine.tokenizer.encode_chat(messages, **fields)
            body = await turn(server, messages, **fields)
            assert pack(body["prompt_token_ids"]) == shown
            assert not extends(body, last)
            # It answered that very prompt, and strips nothing.
            messages.append(user("So?"))
            assert extends(await turn(server, messages, **fields), body)

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_what_a_template_writes_of_one_message_may_hang_on_the_call_before_it(tmp_path):
    label = "{% set calls = messages[loop.index0 - 1].tool_calls or [] %}{{ calls | length }}"
    template = STRIPPING.replace("OPENING", "").replace(
        "{% else %}{{ message.content }}",
        "{% else %}" + label + "{{ message.content }}",
    )

    async def scenario() -> None:
        settings = Settings(tool_call_parser="hermes")
        answers = [CALL, "hello the", "x"]
        async with saying(tmp_path, answers, template=template, server=settings) as server:
            messages = [user("Who?")]
            await turn(server, messages, tools=[TOOL])
            id = messages[-1]["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": id, "content": "Nobody."})
            for keep in (False, True):
                shown = server.engine.tokenizer.encode_chat(messages, tools=[TOOL])
                body = await turn(server, list(messages), tools=[TOOL], keep_reasoning=keep)
                assert pack(body["prompt_token_ids"]) == shown

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_behind_an_answer_that_was_changed_later_ones_are_found_again(tmp_path):
    async def scenario() -> None:
        template = STRIPPING.replace("OPENING", "")
        settings = Settings(reasoning_parser="think", keep_reasoning=True)
        async with saying(tmp_path, THOUGHTS, template=template, server=settings) as server:
            messages = [user("Who?")]
            await turn(server, messages)
            messages[-1]["content"] = "Somebody."
            messages.append(user("And?"))
            last = await turn(server, messages)
            messages.append(user("So?"))
            assert extends(await turn(server, messages), last)

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("changed", ["content", "reasoning", "question", "thinking"])
def test_an_answer_is_not_put_where_it_was_not_given(tmp_path, changed: str):
    async def scenario() -> None:
        template = STRIPPING.replace("OPENING", "")
        settings = Settings(reasoning_parser="think", keep_reasoning=True)
        async with saying(tmp_path, THOUGHTS, template=template, server=settings) as server:
            messages = [user("Who?")]
            body = await turn(server, messages)
            messages[1]["reasoning"] = body["choices"][0]["message"]["reasoning"]
            messages.append(user("And?"))
            if changed == "question":
                messages[0]["content"] = "Where?"
            else:
                messages[1][changed] = "hello there"
            shown = server.engine.tokenizer.encode_chat(messages)
            body = await turn(server, messages)
            assert len(body["prompt_token_ids"]) == len(shown) // 4

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_what_no_answer_can_be_is_refused_as_ever(tmp_path):
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]

    async def scenario() -> None:
        template = STRIPPING.replace("OPENING", "")
        settings = Settings(reasoning_parser="think", keep_reasoning=True)
        async with saying(tmp_path, THOUGHTS, template=template, server=settings) as server:
            messages = [user("Who?")]
            await turn(server, messages)
            messages += [user("And?"), {"role": "assistant", "content": "\ud83d"}, user("So?")]
            response = await server.send(CHAT, json.dumps({"messages": messages}))
            assert response.status_code == 400
            for odd in ({"content": deep}, {"tool_calls": [deep]}, {"tool_calls": [{}]}):
                messages[3] = {"role": "assistant", "content": "hello", **odd}
                assert (await server.ask(CHAT, messages=messages)).status_code in (200, 400)

    asyncio.run(asyncio.wait_for(scenario(), HANG))
