"""Where a prompt parts from those before it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.explain.divergence import Divergence, diverge
from radixserve.server.app import create_app
from tests.server.asking import CHAT, COMPLETIONS
from tests.server.conversing import saying, turn, user
from tests.server.explaining import QUESTION, SYSTEM, chat, explained, run, talk
from tests.server.fake import FakeFrontend
from tests.server.stack import Stack, cached


@pytest.mark.parametrize("broken", ["explain.beside.diverge", "server.step.explain"])
def test_what_cannot_be_explained_is_answered_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
):
    def fail(*_: object, **__: object) -> None:
        raise StopIteration

    async def scenario(server: Stack) -> None:
        first = await chat(server, talk())
        monkeypatch.setattr(f"radixserve.{broken}", fail)
        second = await chat(server, talk(SYSTEM, "Where is one?"), explain=True)
        assert (first.status_code, second.status_code) == (200, 200)
        told = await server.client.get(f"/v1/cache/requests/{second.json()['id']}")
        if broken == "explain.beside.diverge":
            assert (told.json()["reason"], told.json()["diverged"]) == ("diverged", None)
        else:
            assert told.status_code == 404
            assert told.json()["error"]["code"] == "request_not_explained"
        assert "cannot explain a prompt" in caplog.text

    run(tmp_path, scenario)


def test_one_is_found_by_what_the_access_log_calls_it(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        answer = await chat(server, talk())
        told = await explained(server, answer)
        for id in (answer.headers["x-request-id"], f"{answer.headers['x-request-id']}-0"):
            found = await server.client.get(f"/v1/cache/requests/{id}")
            assert found.json() == told
        prompts = {"prompt": ["Where is it?", "How deep is it?"], "max_tokens": 1}
        both = await server.client.post("/v1/completions", json=prompts)
        for number in range(2):
            id = f"{both.headers['x-request-id']}-{number}"
            found = await server.client.get(f"/v1/cache/requests/{id}")
            assert found.json()["id"] == f"{both.json()['id']}-{number}"

    run(tmp_path, scenario)


def test_nobody_finds_one_by_an_id_that_its_client_chose_and_others_may_guess(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        headers = {"x-request-id": "1"}
        body = {"messages": talk(), "max_tokens": 1, "cache_salt": "mine"}
        answer = await server.client.post(CHAT, json=body, headers=headers)
        assert answer.headers["x-request-id"] == "1"
        for id in ("1", "1-0"):
            assert (await server.client.get(f"/v1/cache/requests/{id}")).status_code == 404
        assert (await explained(server, answer))["reason"] == "cold"

    run(tmp_path, scenario)


def test_prompts_that_have_nothing_to_do_with_each_other_are_not_compared_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    compared = 0

    def count(*arguments: Any, **named: Any) -> Divergence | None:
        nonlocal compared
        compared += 1
        return diverge(*arguments, **named)

    async def scenario(server: Stack) -> None:
        monkeypatch.setattr("radixserve.explain.beside.diverge", count)
        for topic in ("fjords", "glaciers", "lighthouses", "herring", "trams"):
            text = f"{topic} of the north {topic} of the south {topic} everywhere else. " * 3
            told = await explained(server, await chat(server, talk(text.title(), f"{topic}?")))
            assert (told["reason"], compared) == ("cold", 0)
        clock = f"Noon. {text.title()}"
        told = await explained(server, await chat(server, talk(clock, "trams?")))
        assert (told["reason"], told["diverged"]["guess"]) == ("diverged", "text_inserted")
        assert compared == 2  # once to find the one that it is like, once to show where they part

    run(tmp_path, scenario)


def test_what_was_called_makes_two_prompts_alike(tmp_path: Path):
    arguments = json.dumps({"path": "tide.py", "text": "def tide(hour): return hour % 12 < 6"})
    call = {"id": "c0", "type": "function", "function": {"name": "w", "arguments": arguments}}
    called = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c0", "content": "ok"},
    ]

    async def scenario(server: Stack) -> None:
        for session in (uuid.UUID(int=10**37), uuid.UUID(int=3**77)):
            messages = [*talk(f"Session {session}", "Go."), *called]
            told = await explained(server, await chat(server, messages))
        assert (told["reason"], told["diverged"]["guess"]) == ("diverged", "uuid")

    run(tmp_path, scenario)


@pytest.mark.parametrize("value", ["[1e999]", "1e999", "9" * 5000])
def test_a_body_that_cannot_be_read_hides_no_other(tmp_path: Path, value: str):
    async def scenario(server: Stack) -> None:
        answer = await server.send(
            COMPLETIONS, f'{{"prompt": "Good day.", "max_tokens": 1, "messages": {value}}}'
        )
        assert answer.status_code == 200, answer.text
        told = await explained(server, await server.ask(prompt="Anything else?", max_tokens=1))
        assert told["reason"] == "cold"
        looked = await server.ask("/v1/cache/lookup", prompt="Whatever may come.")
        assert (looked.status_code, looked.json()["reason"]) == (200, "cold")

    run(tmp_path, scenario)


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


def test_a_clock_that_is_new_in_front_of_all_is_no_cold_prompt(tmp_path: Path):
    rules = SYSTEM.replace("It is 2026-11-30 12:04:17 now. ", "")

    async def scenario(server: Stack) -> None:
        await chat(server, talk(rules))
        told = await explained(server, await chat(server, talk(f"It is 12:04. {rules}")))
        assert told["reason"] == "diverged"
        place = told["diverged"]
        assert (place["guess"], place["message"], place["character"]) == ("text_inserted", 0, 0)

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


def test_who_asks_in_the_first_line_is_no_other_prompt(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        await chat(server, talk(f"Anna. {SYSTEM}"))
        told = await explained(server, await chat(server, talk(f"Karl. {SYSTEM}", "Why?")))
        assert told["reason"] == "diverged"
        place = told["diverged"]
        assert (place["guess"], place["pointer"], place["character"]) == (
            "text",
            "/messages/0/content",
            0,
        )

    run(tmp_path, scenario)


def test_a_text_that_parts_at_its_first_token_is_no_other_prompt(tmp_path: Path):
    async def scenario(server: Stack) -> None:
        await server.ask(prompt=f"Anna. {SYSTEM}", max_tokens=1)
        told = await explained(server, await server.ask(prompt=f"Karl. {SYSTEM}", max_tokens=1))
        assert (told["reason"], told["common_tokens"]) == ("diverged", 0)
        assert told["diverged"]["pointer"] == "/prompt"
        other = await server.ask(prompt="Sing a song of sixpence, and no more.", max_tokens=1)
        told = await explained(server, other)
        assert (told["reason"], told["compared_with"]) == ("cold", None)

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
        for number in range(4):
            response = await server.ask(CHAT, messages=talk("Hi.", *turns), max_tokens=1)
            told = await explained(server, response)
            if number:
                assert told["reason"] is None
                assert {part["reason"] for part in told["parts"]} == {"extended"}
            assert cached(response) >= before
            before = told["prompt_tokens"]
            turns += [response.json()["choices"][0]["message"]["content"], f"And {number}?"]

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


LONG = "The tide is out, hello, the tide is in."


@pytest.mark.parametrize(
    ("change", "guess", "pointer"),
    [
        (lambda text: text.replace("out", "low"), "text", "/messages/1/content"),
        (lambda text: f"{text} And more.", "text_inserted", "/messages/1/content"),
        (lambda text: f" {text}", "whitespace", "/messages/1/content"),
        (lambda _: None, "message_removed", "/messages/1"),
    ],
    ids=["changed", "gone on with", "with a space", "left out"],
)
def test_an_answer_that_comes_back_as_another_one_is_named(
    tmp_path: Path, change: Callable[[str], str | None], guess: str, pointer: str
):
    async def scenario() -> None:
        async with saying(tmp_path, [LONG, "Yes."]) as server:
            messages = [user("What of the tide?")]
            await turn(server, messages)
            text = change(messages.pop()["content"])
            if text is not None:
                messages.append({"role": "assistant", "content": text})
            messages.append(user("And then?"))
            told = await explained(server, await server.ask(CHAT, messages=messages))
            place = told["diverged"]
            assert (place["guess"], place["pointer"], place["message"]) == (guess, pointer, 1)

    asyncio.run(scenario())
