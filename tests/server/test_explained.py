"""Why a prompt was computed: where it parts, what was evicted, what never was in the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.testclient import TestClient

from radixserve.server.app import create_app
from tests.server.asking import USER, complete, error_of, events
from tests.server.fake import FakeFrontend
from tests.server.stack import CHAT, Stack, cached, stack, usage

Scenario = Callable[[Stack], Awaitable[None]]
SYSTEM = "You help people who live by the sea. It is 2026-11-30 12:04:17 now. Be brief and kind."
QUESTION = "What is a fjord?"


def run(directory: Path, scenario: Scenario, **settings: Any) -> None:
    async def within() -> None:
        async with stack(directory, **settings) as server:
            await scenario(server)

    asyncio.run(within())


async def explained(server: Stack, response: Any) -> dict[str, Any]:
    """What is known of a request, by the id of its answer."""
    found = await server.client.get(f"/v1/cache/requests/{response.json()['id']}")
    assert found.status_code == 200, found.text
    told = dict(found.json())
    assert told["cached_tokens"] + told["computed_tokens"] == told["prompt_tokens"]
    return told


def talk(system: str = SYSTEM, *turns: str) -> list[dict[str, str]]:
    said = [{"role": "system", "content": system}]
    for place, each in enumerate(turns or (QUESTION,)):
        said.append({"role": "assistant" if place % 2 else "user", "content": each})
    return said


async def chat(server: Stack, messages: list[dict[str, str]], **fields: Any) -> Any:
    return await server.ask(CHAT, messages=messages, max_tokens=1, **fields)


def test_one_token_that_changed_is_found(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        prompt = list(range(20, 80))
        first = await server.ask(prompt=prompt, max_tokens=1)
        assert (await explained(server, first))["reason"] == "cold"
        prompt[37] = 200
        second = await server.ask(prompt=prompt, max_tokens=1)
        told = await explained(server, second)
        assert told["reason"] == "diverged"
        assert told["common_tokens"] == cached(second) == 37
        assert told["parts"] == [{"reason": "diverged", "start": 37, "tokens": 23}]
        assert told["compared_with"] == first.json()["id"] + "-0"
        assert told["diverged"]["pointer"] == "/prompt/37"

    run(tmp_path, scenario)


def test_a_clock_in_the_system_prompt_is_found_in_message_0(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        await chat(server, talk())
        later = talk(SYSTEM.replace("12:04:17", "12:09:41"))
        told = await explained(server, await chat(server, later))
        assert told["reason"] == "diverged"
        place = told["diverged"]
        assert (place["guess"], place["message"], place["role"]) == ("timestamp", 0, "system")
        assert place["pointer"] == "/messages/0/content"
        assert place["character"] == SYSTEM.index("4:17")
        assert "12:04:17" in place["earlier"]
        assert "12:09:41" in place["later"]

    run(tmp_path, scenario)


def test_a_clock_that_comes_before_all_else_is_no_other_prompt(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        await chat(server, talk("12:04:17. " + SYSTEM))
        told = await explained(server, await chat(server, talk("12:09:41. " + SYSTEM)))
        assert told["reason"] == "diverged"
        assert told["diverged"]["guess"] == "timestamp"
        other = await chat(server, talk("Sing a song of sixpence, a pocket full of rye."))
        assert (await explained(server, other))["reason"] == "cold"

    run(tmp_path, scenario)


def test_few_tokens_in_common_are_told_by_the_request_that_left_them(tmp_path: Path):
    question = "The tide is out. What lives in the pools that it leaves between the rocks?"

    async def scenario(server: Stack) -> None:
        left = await chat(server, talk("", "The tide is in: sing.")[1:], cache_salt="a")
        await chat(server, talk(SYSTEM, question), cache_salt="a")
        body = {"messages": talk("", question)[1:], "max_tokens": 1, "cache_salt": "a"}
        looked = await server.client.post("/v1/cache/lookup", json=body)
        later = await server.ask(CHAT, **body)
        for told in (looked.json(), await explained(server, later)):
            assert told["cached_tokens"] == cached(later) >= len("The tide is ")
            assert told["common_tokens"] == told["cached_tokens"]
            assert told["compared_with"] == left.json()["id"]
            assert (told["reason"], told["diverged"]) == ("cold", None)

    run(tmp_path, scenario)


def test_another_question_parts_at_its_own_message(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        await chat(server, talk())
        told = await explained(server, await chat(server, talk(SYSTEM, "What is a delta?")))
        place = told["diverged"]
        assert (place["message"], place["role"], place["guess"]) == (1, "user", "text")
        assert place["character"] == QUESTION.index("fjord")

    run(tmp_path, scenario)


def test_a_conversation_that_goes_on_has_missed_nothing(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        turns = [QUESTION]
        before = 0
        for turn in range(4):
            response = await server.ask(CHAT, messages=talk("Hi.", *turns), max_tokens=1)
            told = await explained(server, response)
            if turn:
                assert told["reason"] is None
                assert {part["reason"] for part in told["parts"]} == {"extended"}
            assert cached(response) >= before
            before = told["prompt_tokens"]
            turns += [response.json()["choices"][0]["message"]["content"], f"And {turn}?"]

    run(tmp_path, scenario)


def test_a_turn_that_is_stored_without_what_was_wrapped_around_it_is_named(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        wrapped = f"Use this: a fjord is a long inlet between cliffs. Question: {QUESTION}"
        first = await chat(server, talk("Hi.", wrapped))
        answer = first.json()["choices"][0]["message"]["content"]
        raw = talk("Hi.", QUESTION, answer, "Thanks")
        told = await explained(server, await chat(server, raw))
        place = told["diverged"]
        assert (place["guess"], place["message"], place["role"]) == ("unwrapped", 1, "user")

    run(tmp_path, scenario)


def test_an_answer_that_was_edited_parts_at_its_message(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        first = await server.ask(CHAT, messages=talk("Hi."), max_tokens=30)
        answer = first.json()["choices"][0]["message"]["content"]
        edited = talk("Hi.", QUESTION, answer[:10] + "!" + answer[11:], "Thanks")
        told = await explained(server, await chat(server, edited))
        assert told["reason"] == "diverged"
        place = told["diverged"]
        assert (place["message"], place["role"], place["character"]) == (2, "assistant", 10)

    run(tmp_path, scenario)


def test_shared_heads_of_any_length_are_reused_to_the_token(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        stats = (await server.client.get("/v1/cache/stats")).json()
        assert stats["page_size"] == 4
        prompt = list(range(20, 80))
        await server.ask(prompt=prompt, max_tokens=1)
        for shared in (1, 2, 3, 4, 5, 7, 8, 9, 12, 21, 22, 24, 33):
            parted = [*prompt[:shared], *([100 + shared] * 20)]
            response = await server.ask(prompt=parted, max_tokens=1)
            told = await explained(server, response)
            assert cached(response) == shared
            assert told["common_tokens"] == shared
            assert told["compared_with"] is not None
            assert told["page_size"] == 4
            reasons = {part["reason"] for part in told["parts"]}
            assert reasons == ({"cold"} if shared < 20 else {"diverged"})

    run(tmp_path, scenario)


def test_what_was_evicted_says_when_and_for_whom(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        prompt = list(range(20, 60))
        await server.ask(prompt=prompt, max_tokens=1)
        for other in range(5):
            await server.ask(prompt=[100 + other] * 40, max_tokens=1)
        response = await server.ask(prompt=prompt, max_tokens=1)
        assert cached(response) < 36
        told = await explained(server, response)
        assert told["reason"] == "evicted"
        assert told["seconds_ago"] >= 0.0
        assert told["own_pressure"] is True
        assert told["diverged"] is None
        # The last token is computed in any case.
        assert sum(part["tokens"] for part in told["parts"]) == 39 - cached(response)

    run(tmp_path, scenario, num_pages=32)


@pytest.mark.parametrize("mode", ["off", "read-only"])
def test_what_was_asked_past_the_cache_was_never_in_it(tmp_path: Path, mode: str):
    async def scenario(server: Stack) -> None:
        prompt = list(range(20, 60))
        first = await server.ask(prompt=prompt, max_tokens=1, cache={"mode": mode})
        assert (await explained(server, first))["reason"] == ("bypass" if mode == "off" else "cold")
        told = await explained(server, await server.ask(prompt=prompt, max_tokens=1))
        assert (told["reason"], told["detail"]) == ("never_cached", f"cache mode {mode}")

    run(tmp_path, scenario)


def test_logprobs_of_a_prompt_pass_the_cache_by(client: TestClient):
    complete(client, "x" * 100)
    asked = complete(client, "x" * 100 + "y", prompt_logprobs=1).json()["id"]
    told = client.get(f"/v1/cache/requests/{asked}").json()
    assert (told["reason"], told["detail"]) == ("bypass", "prompt_logprobs")


def test_what_ends_before_it_has_begun_was_never_in_the_cache(
    client: TestClient, frontend: FakeFrontend
):
    frontend.fail_after = 0
    assert complete(client, "x" * 100).status_code == 500
    frontend.fail_after = None
    frontend._seen.clear()
    asked = complete(client, "x" * 100).json()["id"]
    told = client.get(f"/v1/cache/requests/{asked}").json()
    assert (told["reason"], told["detail"]) == ("never_cached", "failed")


def test_what_still_runs_is_not_in_the_cache_yet(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        prompt = list(range(20, 60))
        server.model.hold()
        long = server.ask(prompt=prompt, max_tokens=300, cache={"mode": "off"})
        first = asyncio.create_task(long)
        await server.steps(1)
        second = asyncio.create_task(server.ask(prompt=prompt, max_tokens=1))
        while not second.done():
            await server.steps(1)
        assert not first.done()
        told = await explained(server, second.result())
        server.model.free()
        await first
        assert (told["reason"], told["detail"]) == ("never_cached", "still running")

    run(tmp_path, scenario)


def test_a_salt_narrows_what_is_compared(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        await chat(server, talk(), cache_salt="one")
        told = await explained(server, await chat(server, talk(), cache_salt="two"))
        assert told["reason"] == "cold"
        assert told["compared_with"] is None
        assert told["narrowed_by"] == ["cache_salt"]
        plain = await explained(server, await chat(server, talk()))
        assert (plain["reason"], plain["narrowed_by"]) == ("cold", [])

    run(tmp_path, scenario)


def test_what_was_forgotten_says_so(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        asked = await chat(server, talk())
        await server.client.post("/reset_prefix_cache")
        gone = await server.client.get(f"/v1/cache/requests/{asked.json()['id']}")
        assert gone.status_code == 404
        told = await explained(server, await chat(server, talk()))
        assert told["reason"] == "reset"
        assert told["seconds_ago"] >= 0.0
        await server.client.delete("/v1/cache/tenants/self")
        assert (await explained(server, await chat(server, talk())))["reason"] == "purged"
        await chat(server, talk(), cache_salt="s")
        await server.ask("/v1/cache/purge", cache_salt="s")
        salted = await explained(server, await chat(server, talk(), cache_salt="s"))
        assert salted["reason"] == "purged"

    run(tmp_path, scenario)


def test_an_engine_that_was_started_again_has_forgotten(client: TestClient, frontend: FakeFrontend):
    stats = frontend.stats()
    complete(client, "x" * 100)
    frontend._seen.clear()
    frontend.stats = lambda: replace(stats, restarts=1)  # type: ignore[method-assign]
    again = complete(client, "x" * 100).json()["id"]
    assert client.get(f"/v1/cache/requests/{again}").json()["reason"] == "restarted"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("header", [False, True])
def test_usage_says_why_on_request(tmp_path: Path, stream: bool, header: bool):
    async def scenario(server: Stack) -> None:
        fields: dict[str, Any] = {"max_tokens": 1, "prompt": list(range(20, 100))}
        if stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if header:
            server.client.headers["x-radixserve-explain"] = "1"
        else:
            fields["explain"] = True
        cold = usage(await server.ask(**fields))["radixserve"]
        assert cold["reasons"] == {"cold": 80}
        assert cold["time_saved_ms"] == 0.0
        fields["prompt"] = [*range(20, 70), *([9] * 30)]
        warm = usage(await server.ask(**fields))["radixserve"]
        assert warm["reasons"] == {"diverged": 30}
        assert warm["computed_tokens"] == 30
        assert warm["time_saved_ms"] > 0.0

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("fields", "headers", "listed"),
    [
        ({"explain": True}, {}, "explain"),
        ({}, {"x-radixserve-explain": "on"}, "x-radixserve-explain"),
        ({"explain": False}, {"x-radixserve-explain": "no"}, None),
        ({"explain": True, "stream_options": {"include_usage": True}}, {}, None),
    ],
)
def test_a_stream_without_usage_says_that_it_explains_nothing(
    client: TestClient, fields: Any, headers: dict[str, str], listed: str | None
):
    for path, body in (("chat/completions", {"messages": USER}), ("completions", {"prompt": "Hi"})):
        answer = client.post(
            f"/v1/{path}", json={**body, "stream": True, **fields}, headers=headers
        )
        assert answer.headers.get("x-radixserve-ignored") == listed
        id = events(answer)[0]["id"]
        assert client.get(f"/v1/cache/requests/{id}").json()["prompt_tokens"] > 0


@pytest.mark.parametrize("name", ["x-radixserve-explain", "x-dynamo-session-final"])
def test_headers_that_say_neither_yes_nor_no_are_refused(client: TestClient, name: str):
    for word in ("maybe", "2", "tru"):
        error = error_of(
            client.post("/v1/completions", json={"prompt": "Hi"}, headers={name: word})
        )
        assert (error["param"], error["code"]) == (name, "invalid_value")
        assert "1, true, yes, on, 0, false, no, off" in error["message"]
    for word in ("TRUE", "1", "off", "false", ""):
        headers = {name: word, "x-session-id": "s"}
        answer = client.post("/v1/completions", json={"prompt": "Hi"}, headers=headers)
        assert answer.status_code == 200


def test_nobody_is_told_of_what_is_unknown(client: TestClient):
    for id in ("nothing", "x" * 5000, "%00"):
        error = error_of(client.get(f"/v1/cache/requests/{id}"), 404)
        assert error["code"] == "request_not_found"
        assert len(error["message"]) < 300


def test_reasons_are_counted(client: TestClient):
    complete(client, "x" * 100)
    complete(client, "x" * 100)
    complete(client, "x" * 60 + "y" * 40)
    shown = client.get("/metrics").text
    assert 'prompt_tokens_computed_total{model_name="fake/model",reason="cold"} 100.0' in shown
    assert 'reason="diverged"} 40.0' in shown
    assert "radixserve:explaining_seconds{" in shown


def test_tools_keep_the_order_in_which_they_were_sent():
    frontend = FakeFrontend(max_model_len=2000)

    def render(messages: list[dict[str, Any]], *, tools: Any = None, **_: Any) -> str:
        return f"{tools}\n{messages}"

    frontend.tokenizer.render_chat = render  # type: ignore[assignment, method-assign]
    frontend.tokenizer.takes_tools = True
    frontend.tokenizer.chat_template_source = "{{ tools }}<tool_call>"
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        for name in ("sail", "row")
    ]
    with TestClient(create_app(frontend)) as client:
        ids = []
        for sent in (tools, tools[::-1]):
            body = {"messages": talk(), "tools": sent}
            ids.append(client.post(CHAT, json=body).json()["id"])
        first, second = (request.prompt for request in frontend.requests)
        assert first != second
        place = client.get(f"/v1/cache/requests/{ids[1]}").json()["diverged"]
        assert (place["guess"], place["pointer"]) == ("tool_order", "/tools/0")


def test_ids_that_come_back_as_they_were_cost_nothing():
    frontend = FakeFrontend(max_model_len=2000)

    def render(messages: list[dict[str, Any]], **_: Any) -> str:
        return "\n".join(map(str, messages))

    frontend.tokenizer.render_chat = render  # type: ignore[assignment, method-assign]

    def called(id: str) -> list[dict[str, Any]]:
        function = {"name": "tide", "arguments": "{}"}
        call = {"id": id, "type": "function", "function": function}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        return [*talk(), said, {"role": "tool", "tool_call_id": id, "content": "high"}]

    with TestClient(create_app(frontend)) as client:
        told = []
        for id in ("call_a8Fk29xQz1", "call_a8Fk29xQz1", "call_b7Tq81mWe4"):
            answer = client.post(CHAT, json={"messages": called(id)}).json()
            told.append(client.get(f"/v1/cache/requests/{answer['id']}").json())
        assert told[1]["computed_tokens"] == 1
        place = told[2]["diverged"]
        assert (place["guess"], place["message"]) == ("random_id", 2)
        assert place["pointer"] == "/messages/2/tool_calls/0/id"


@pytest.mark.parametrize("counted", [False, True])
def test_a_prompt_that_is_too_long_names_the_longest_messages(
    client: TestClient, frontend: FakeFrontend, counted: bool
):
    if counted:
        frontend.tokenizer.fewest_tokens = lambda _: 0  # type: ignore[method-assign]
    messages = talk("Hi.", "short", "x" * 149 + "é", "also short", "y" * 90)
    error = error_of(client.post(CHAT, json={"messages": messages}))
    assert error["code"] == "context_length_exceeded"
    sizes = ("151 tokens", "90 tokens") if counted else ("150 characters", "90 characters")
    longest = f"messages.2 (assistant, {sizes[0]}), messages.4 (assistant, {sizes[1]})"
    assert f"The longest messages are {longest}" in error["message"]


def test_calls_count_among_what_is_too_long_and_odd_ones_break_nothing(client: TestClient):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "x" * 300}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    messages = [*talk("Hi.", "x" * 250), said, {"role": "user", "content": "So?"}]
    error = error_of(client.post(CHAT, json={"messages": messages}))
    longest = "messages.2 (assistant, 300 characters), messages.1 (user, 250 characters)"
    assert f"The longest messages are {longest}" in error["message"]
    odd = [{"role": 5, "tool_calls": 7, "content": {"a": 1}}] * 300
    error = error_of(client.post(CHAT, json={"messages": odd}))
    assert error["code"] == "context_length_exceeded"
    assert "messages.0 (5, 0 characters)" in error["message"]
