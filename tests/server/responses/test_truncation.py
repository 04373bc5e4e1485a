"""A conversation that has grown too long goes on without its oldest turns, if that is wanted."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.errors import ContextLengthError
from radixserve.server.responses import reading
from radixserve.server.responses.truncation import moved, shorter
from tests.server.asking import refused
from tests.server.fake import FakeFrontend
from tests.server.responses.told import ask
from tests.server.stack import stack


def turns(count: int) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": f"{role} {number}"}
        for number in range(count)
        for role in ("user", "assistant")
    ]


def test_the_system_and_the_last_turns_stay():
    messages = [{"role": "system", "content": "Be good."}, *turns(20)]
    size = sum(len(str(message)) for message in messages)
    cuts = list(shorter(messages, ContextLengthError(size, size * 3 // 4)))
    assert len(cuts) > 1
    lengths = [len(kept) for _, kept in cuts]
    assert lengths == sorted(set(lengths), reverse=True)
    for gone, kept in cuts:
        assert kept[0]["role"] == "system"
        assert kept[1]["role"] == "user"
        assert kept == [messages[0], *messages[gone.stop :]]
    assert [each["content"] for each in cuts[-1][1][1:]] == ["user 19", "assistant 19"]
    assert not list(shorter(messages[:3], ContextLengthError(100, 50)))


def test_what_is_left_keeps_its_paths():
    paths = {
        "messages": "input",
        "messages.0": "instructions",
        "messages.1": "input.0",
        "messages.3": "input.2",
        "messages.3.tool_calls.0": "input.3",
        "temperature": "temperature",
    }
    assert moved(paths, range(1, 3)) == {
        "messages": "input",
        "messages.0": "instructions",
        "messages.1": "input.2",
        "messages.1.tool_calls.0": "input.3",
        "temperature": "temperature",
    }


def test_only_who_asks_for_it_is_cut_short(client: TestClient, frontend: FakeFrontend):
    history = turns(30)
    assert refused(ask(client, history)) == ("input", "context_length_exceeded")
    response = ask(client, history, truncation="auto", instructions="Be good.")
    assert response.json()["truncation"] == "auto"
    told = frontend.tokenizer.decode([*frontend.requests[0].prompt[3::4]])
    assert told.startswith("system: Be good.\nuser: user ")
    assert told.endswith("assistant: assistant 29\nassistant:")
    alone = ask(client, "x" * 500, truncation="auto")
    assert refused(alone) == ("input", "context_length_exceeded")
    assert "are input (user, 500 characters)." in alone.json()["error"]["message"]
    # More messages than the context has tokens.
    assert ask(client, turns(200), truncation="auto").status_code == 200


def test_the_copies_that_it_takes_hold_up_nobody(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
):
    here = []

    def watched(value: Any) -> Any:
        try:
            here.append(asyncio.get_running_loop())
        except RuntimeError:
            here.append(None)
        return deepcopy(value)

    monkeypatch.setattr(reading, "deepcopy", watched)
    assert ask(client, turns(30), truncation="auto").status_code == 200
    assert len(here) > 1
    assert not any(here)


def test_marks_stay_on_what_is_left(client: TestClient, frontend: FakeFrontend):
    marked = {
        "role": "user",
        "content": [
            {
                "type": "input_text",
                "text": "Hi",
                "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"},
            }
        ],
    }
    options = {"prompt_cache_options": {"mode": "explicit"}}
    assert ask(client, [*turns(30), marked], truncation="auto", **options).status_code == 200
    keeping = frontend.requests[0].keeping
    assert keeping is not None
    assert [mark.seconds for mark in keeping.marks] == [12 * 3600]


def test_errors_name_the_items_that_are_left():
    with TestClient(_app()) as client:
        last = [
            {"role": "user", "content": "Hi"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"},
        ]
        response = ask(client, [*turns(30), *last], truncation="auto")
        assert refused(response)[0] == "input.61.arguments"


def _app() -> Any:
    from radixserve.errors import InvalidRequestError
    from radixserve.server.app import create_app

    frontend = FakeFrontend()
    render = frontend.tokenizer.render_chat

    def picky(messages: list[dict[str, Any]], **settings: Any) -> str:
        for place, message in enumerate(messages):
            if "tool_calls" in message:
                path = f"messages.{place}.tool_calls.0.function.arguments"
                if len(messages) < 15:
                    raise InvalidRequestError(f"{path} is no JSON", param=path)
        return render(messages, **settings)

    frontend.tokenizer.render_chat = picky  # type: ignore[method-assign]
    return create_app(frontend)


@pytest.mark.parametrize("turns_", [12])
def test_the_cut_moves_seldom_so_that_most_turns_are_cached(tmp_path, turns_: int):
    async def scenario() -> list[float]:
        shares = []
        async with stack(tmp_path, num_pages=200) as server:
            last = None
            for turn in range(turns_):
                previous = {"previous_response_id": last["id"]} if last else {}
                response = await server.ask(
                    "/v1/responses",
                    input=f"Question {turn}?",
                    instructions="Be good.",
                    truncation="auto",
                    max_output_tokens=20,
                    temperature=0,
                    **previous,
                )
                assert response.status_code == 200, response.text
                last = response.json()
                usage = last["usage"]
                details = usage["input_tokens_details"]
                shares.append(details["cached_tokens"] / usage["input_tokens"])
        return shares

    shares = asyncio.run(scenario())
    assert sum(share > 0.5 for share in shares) > turns_ // 2
    assert any(share < 0.5 for share in shares[3:])
