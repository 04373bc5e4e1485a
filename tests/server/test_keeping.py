"""What requests say of how long their prefixes are to be kept."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from radixserve.cache.terms import Keeping, Mark
from radixserve.server.keeping import HEADER, LONGEST_SESSION, read_marks, seconds_of
from radixserve.server.service import Settings
from radixserve.server.wire import ChatRequest, PromptCacheOptions
from radixserve.text.marked import Spot
from radixserve.text.tokenizer import Tokenizer
from tests.server.asking import BREAK, CHAT, chat, error_of, part, refused, user
from tests.server.fake import FakeFrontend
from tests.server.stack import Stack, stack, usage
from tests.text.tiny import HERMES


def read(messages: list[dict[str, Any]], headers: Any = None, **fields: Any):
    return read_marks(ChatRequest(messages=messages, **fields), Headers(headers or {}))


# What is said


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [("30m", 1800), ("12h", 43_200), ("90s", 90), ("24h", 86_400), (5, 5), (1, 1), (1.5, 2)],
)
def test_times_are_numbers_of_seconds_or_have_a_unit(sent: Any, seconds: int):
    assert seconds_of(sent, "ttl") == seconds


@pytest.mark.parametrize(
    "sent",
    [
        -1,
        0,
        86_401,
        float("inf"),
        float("nan"),
        "-5m",
        "25h",
        "0s",
        "5",
        "m",
        "",
        "forever",
        0.999,
        "٣m",
    ],
)
@pytest.mark.parametrize("where", ["options", "part", "keep_for", "next_request_in"])
def test_times_that_cannot_be_are_refused_with_their_place(
    client: TestClient, sent: Any, where: str
):
    if isinstance(sent, float) and not math.isfinite(sent):
        sent = {"inf": 1e300, "nan": -1e300}[str(sent)]
    mark = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": sent}}
    fields: dict[str, dict[str, Any]] = {
        "options": {"prompt_cache_options": {"ttl": sent}},
        "part": {"messages": [user(part("Hi", **mark))]},
        "keep_for": {"keep_for": sent},
        "next_request_in": {"next_request_in": -1 if sent in (0, 0.999, "0s") else sent},
    }
    paths = {
        "options": "prompt_cache_options.ttl",
        "part": "messages.0.content.0.prompt_cache_breakpoint.ttl",
        "keep_for": "keep_for",
        "next_request_in": "next_request_in",
    }
    assert refused(chat(client, **fields[where])) == (paths[where], "invalid_value")


def test_a_mode_that_cannot_be_is_told_those_that_can(client: TestClient):
    told = error_of(chat(client, prompt_cache_options={"mode": "auto"}))
    assert told["message"] == "prompt_cache_options.mode must be one of explicit, implicit."
    assert told["param"] == "prompt_cache_options.mode"


def test_marks_are_taken_out_of_what_is_rendered():
    messages = [user(part("a", **BREAK), part("b")), {"role": "user", "content": "c", **BREAK}]
    marked = read(messages)
    assert marked.spots == [(Spot(message=0, part=0), 1800), (Spot(message=1), 1800)]
    assert messages == [user(part("a"), part("b")), {"role": "user", "content": "c"}]


def test_marks_of_another_api_have_no_effect_and_are_listed():
    foreign = {"cache_control": {"type": "ephemeral"}}
    messages = [user(part("One", **foreign), part("Two")), {**user(part("Three")), **foreign}]
    tool = {"type": "function", "function": {"name": "f"}}
    tools = [tool, {**tool, **foreign}]
    marked = read(messages, tools=tools)
    assert marked.spots == []
    assert marked.ignored == [
        "messages.cache_control",
        "messages.content.cache_control",
        "tools.cache_control",
    ]
    assert (messages, tools) == ([user(part("One"), part("Two")), user(part("Three"))], [tool] * 2)


@pytest.mark.parametrize("place", ["tools", "messages", "content"])
def test_a_mark_that_is_null_is_none(place: str):
    none = {"prompt_cache_breakpoint": None, "cache_control": None}
    messages = [{**user(part("One", **none)), **none}]
    marked = read(messages, tools=[{"type": "function", "function": {"name": "f"}, **none}])
    assert (marked.spots, marked.ignored) == ([], [])


@pytest.mark.parametrize("mark", [BREAK, {"cache_control": {"type": "ephemeral"}}])
def test_no_mark_stands_in_a_prompt(tmp_path, mark: dict[str, Any]):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    plain = {"messages": [user(part("Hi"))], "tools": [tool]}
    marked = {"messages": [user(part("Hi", **mark))], "tools": [{**tool, **mark}]}

    async def scenario() -> None:
        async with stack(tmp_path, server=Settings(tool_call_parser="none")) as server:
            file = tmp_path / "template.jinja"
            file.write_text(HERMES, encoding="utf-8")
            server.engine.tokenizer = Tokenizer.load(tmp_path, chat_template=file)
            prompts = []
            for body in (plain, marked):
                told = await server.ask(CHAT, **body, max_tokens=1, return_token_ids=True)
                counted = await server.ask("/tokenize", **body)
                prompts += [told.json()["prompt_token_ids"], counted.json()["tokens"]]
            assert prompts == prompts[:1] * 4
            await server.settle()

    asyncio.run(scenario())


def test_a_mark_has_its_own_time_or_that_of_the_request():
    own = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    options = PromptCacheOptions(mode="explicit", ttl="90s")
    marked = read([user(part("a", **own), part("b", **BREAK))], prompt_cache_options=options)
    assert [seconds for _, seconds in marked.spots] == [43_200, 90]


def test_the_end_of_the_last_message_is_marked_where_options_do_not_say_otherwise():
    messages = [user(part("a")), user(part("b"))]
    assert read(messages).spots == []
    implicit = read(messages, prompt_cache_options=PromptCacheOptions())
    assert implicit.spots == [(Spot(message=1), 1800)]
    explicit = read(messages, prompt_cache_options=PromptCacheOptions(mode="explicit"))
    assert explicit.spots == []
    retained = read(messages, prompt_cache_retention="24h")
    assert retained.spots == [(Spot(message=1), 86_400)]
    for memory in ("in_memory", "in-memory"):  # OpenAI's clients have had both
        assert read(messages, prompt_cache_retention=memory).spots == []


def test_of_many_marks_the_last_ones_count_and_the_others_are_listed():
    messages = [user(part(str(number), **BREAK)) for number in range(7)]
    marked = read([dict(each) for each in messages])
    assert [spot.message for spot, _ in marked.spots] == [3, 4, 5, 6]
    assert marked.ignored == ["prompt_cache_breakpoint"]
    messages = [user(part(str(number), **BREAK)) for number in range(7)]
    marked = read(messages, prompt_cache_options=PromptCacheOptions())
    assert [spot.message for spot, _ in marked.spots] == [4, 5, 6, 6]


def test_what_is_to_be_kept_with_the_answer_needs_no_place():
    assert read([user(part("a"))], keep_for=90).at([]) == Keeping((Mark(None, 90),))
    assert read([user(part("a"))]).at([]) is None


@pytest.mark.parametrize(("sent", "seconds"), [(0, 0), (0.2, 1), (8, 8), ("2m", 120)])
def test_when_the_next_request_comes_needs_no_place(sent: float | str, seconds: int):
    assert read([user(part("a"))], next_request_in=sent).at([]) == Keeping(next_in=seconds)


@pytest.mark.parametrize(
    ("headers", "session"),
    [
        ({"x-session-id": "a"}, "a"),
        ({"session-id": "a"}, "a"),
        ({"x-claude-code-session-id": "a"}, "a"),
        ({"x-claude-code-session-id": "a", "x-claude-code-agent-id": "b"}, "a/b"),
        ({"x-dynamo-session-id": "a"}, "a"),
        ({"x-parent-session-id": "a"}, ""),
        ({}, ""),
    ],
)
def test_sessions_are_named_by_the_headers_of_known_clients(headers: Any, session: str):
    keeping = read([user(part("a"))], headers).at([])
    assert (keeping.session if keeping else "") == session


def test_the_body_names_the_session_before_headers_and_the_cache_key_after_them():
    messages = [user(part("a"))]
    both = read(messages, {"x-session-id": "h"}, session_id="b", prompt_cache_key="k").at([])
    assert both == Keeping((), "b")
    assert read(messages, {"x-session-id": "h"}, prompt_cache_key="k").at([]) == Keeping((), "h")
    assert read(messages, prompt_cache_key="k").at([]) == Keeping((), "k")


def test_the_last_turn_of_a_session_is_said_in_the_body_or_in_a_header():
    messages = [user(part("a"))]
    assert read(messages, session_id="s", session_end=True).at([]) == Keeping((), "s", True)
    headers = {"x-dynamo-session-id": "s", "x-dynamo-session-final": "true"}
    assert read(messages, headers).at([]) == Keeping((), "s", True)


def test_what_cannot_name_a_session_is_refused_or_ignored(client: TestClient):
    long = "x" * (LONGEST_SESSION + 1)
    assert refused(chat(client, session_id=long)) == ("session_id", "invalid_value")
    for fields in ({}, {"session_id": ""}):
        assert refused(chat(client, **fields, session_end=True)) == ("session_end", "invalid_value")
    assert read([user(part("a"))], {"x-session-id": long}).ignored == ["x-session-id"]


@pytest.mark.parametrize("name", ["session_id", "prompt_cache_key", "prompt_cache_retention"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [user(part("a"))]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a", "store": False}),
    ],
)
def test_an_empty_hint_is_one_that_was_not_sent(
    client: TestClient, frontend: FakeFrontend, path: str, body: dict[str, Any], name: str
):
    assert client.post(path, json={**body, name: ""}).status_code == 200
    assert frontend.requests[-1].keeping is None
    headers = {"x-session-id": "h"}
    assert client.post(path, json={**body, name: ""}, headers=headers).status_code == 200
    assert frontend.requests[-1].keeping == Keeping((), "h")


@pytest.mark.parametrize("name", ["cache_salt", "extra_key"])
def test_what_separates_must_not_be_empty(client: TestClient, name: str):
    assert refused(chat(client, **{name: ""})) == (name, "invalid_value")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_cache_options": {"mode": "never"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_retention": "1w"}, "prompt_cache_retention"),
        (
            {"messages": [user(part("a", prompt_cache_breakpoint=True))]},
            "messages.0.content.0.prompt_cache_breakpoint",
        ),
        (
            {
                "messages": [
                    user(part("a", prompt_cache_breakpoint={"mode": "explicit", "ttl": [1]}))
                ]
            },
            "messages.0.content.0.prompt_cache_breakpoint.ttl",
        ),
        *(
            (
                {"messages": [user(part("a", prompt_cache_breakpoint=mark))]},
                "messages.0.content.0.prompt_cache_breakpoint.mode",
            )
            for mark in ({"mode": "implicit"}, {"mode": 5}, {}, {"foo": 1}, {"ttl": "5m"})
        ),
    ],
)
def test_what_is_no_mark_is_refused_with_its_place(client: TestClient, fields: Any, param: str):
    assert refused(chat(client, **fields))[0] == param


# What becomes of it


def keep_of(response: Any) -> tuple[str | None, int | None]:
    details = usage(response)["prompt_tokens_details"]
    return details.get("keep"), details.get("kept_tokens")


def test_a_mark_is_kept_to_the_very_token_and_it_is_told(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            messages = [user(part("The rules of the house.", **BREAK), part("And you?"))]
            response = await server.ask(CHAT, messages=messages, max_tokens=2)
            status, tokens = keep_of(response)
            assert status == "granted"
            assert response.headers[HEADER] == f"granted; tokens={tokens}"
            marked = await prompt_of(server, [user(part("The rules of the house.#"))])
            whole = await prompt_of(
                server, [user(part("The rules of the house."), part("And you?"))]
            )
            alike = next(
                at for at, pair in enumerate(zip(marked, whole, strict=False)) if len({*pair}) > 1
            )
            assert tokens == alike
            await server.settle()
            assert server.engine.stats().tenants[""].pages_kept == -(-alike // 4)

    asyncio.run(scenario())


async def prompt_of(server: Stack, messages: list[dict[str, Any]]) -> list[int]:
    response = await server.ask("/tokenize", messages=messages)
    return list(response.json()["tokens"])


def test_a_budget_that_is_spent_is_told(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4, keep_share=0.0) as server:
            fields = {"messages": [user(part("Hello there."))], "max_tokens": 1}
            response = await server.ask(CHAT, **fields, keep_for=60)
            assert keep_of(response) == ("refused", 0)
            assert response.headers[HEADER] == "refused; tokens=0"
            stream = {"stream": True, "stream_options": {"include_usage": True}}
            assert keep_of(await server.ask(CHAT, **fields, **stream, keep_for=60)) == (
                "refused",
                0,
            )
            plain = await server.ask(CHAT, **fields)
            assert keep_of(plain) == (None, None)
            assert HEADER not in plain.headers

    asyncio.run(scenario())


def test_completions_keep_their_prompts_too(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            fields = {"prompt": list(range(20, 30)), "max_tokens": 3}
            response = await server.ask(**fields, prompt_cache_options={"ttl": "30m"})
            assert keep_of(response) == ("granted", 10)
            await server.settle()
            assert server.engine.stats().tenants[""].pages_kept == 3

    asyncio.run(scenario())


def test_what_leaves_nothing_in_the_cache_keeps_nothing(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            response = await server.ask(
                CHAT,
                messages=[user(part("Hello there."))],
                max_tokens=1,
                keep_for=60,
                cache={"mode": "read-only"},
            )
            assert keep_of(response) == ("refused", 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "ignored"),
    [
        (CHAT, {"messages": [user(part("a"))]}, ["comparison_response_id", "size"]),
        ("/v1/completions", {"prompt": "a"}, ["comparison_response_id", "size"]),
        ("/v1/responses", {"input": "a"}, ["size"]),
    ],
)
def test_options_without_effect_are_listed(
    client: TestClient, path: str, body: dict[str, Any], ignored: list[str]
):
    options = {"ttl": "1h", "comparison_response_id": "resp_1", "size": 1}
    answer = client.post(path, json={**body, "prompt_cache_options": options})
    said = answer.headers["x-radixserve-ignored"]
    assert said == ", ".join(f"prompt_cache_options.{each}" for each in ignored)
