"""``cache_control`` marks what is kept, wherever it stands, and never refuses anybody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixserve.cache.terms import Mark
from radixserve.server.keeping import BREAKPOINT, HEADER
from radixserve.server.messages.blocks import Chat
from radixserve.server.messages.wire import InputMessage
from tests.server.fake import FakeFrontend
from tests.server.messages.asking import PATH, USER, message
from tests.server.stack import stack

MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
FIVE, SIXTY = {"mode": "explicit", "ttl": 300}, {"mode": "explicit", "ttl": 3600}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **fields}


def read(system: Any, *turns: tuple[str, Any]) -> Chat:
    return Chat(system, [InputMessage(role=role, content=content) for role, content in turns])


def test_a_mark_stands_where_its_block_does():
    chat = read(
        [text("x-anthropic-billing-header: a=1;"), text("Rules.", **HOUR)],
        ("user", [text("One.", **MARK), text("Two.")]),
    )
    assert chat.messages == [
        {"role": "system", "content": "Rules.", BREAKPOINT: SIXTY},
        {"role": "user", "content": [{**text("One."), BREAKPOINT: FIVE}, text("Two.")]},
    ]
    assert not chat.ignored


def test_marks_on_calls_and_results_stand_on_their_messages():
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}, **MARK}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "4", **HOUR}
    chat = read(None, ("user", "?"), ("assistant", [text("So."), use]), ("user", [result]))
    assert [each.get(BREAKPOINT) for each in chat.messages] == [None, FIVE, SIXTY]


@pytest.mark.parametrize(
    "control",
    ["yes", 5, [], {}, {"type": "other"}, {"type": "ephemeral", "ttl": "-5m"},
     {"type": "ephemeral", "ttl": "forever"}, {"type": "ephemeral", "ttl": []},
     {"type": "ephemeral", "ttl": True}, {"type": "ephemeral", "ttl": 0.999},
     {"type": "ephemeral", "ttl": "٣m"}],
)  # fmt: skip
def test_what_is_no_mark_is_ignored_and_listed(client, frontend: FakeFrontend, control: Any):
    for fields in (
        {"cache_control": control},
        {"system": [text("s", cache_control=control)]},
        {"messages": [{"role": "user", "content": [text("u", cache_control=control)]}]},
    ):
        answer = message(client, **fields)
        assert answer.status_code == 200
        assert answer.headers["x-radixserve-ignored"] == "cache_control"
        assert frontend.requests[-1].keeping is None


def test_any_number_of_marks_is_taken_and_four_count(client, frontend: FakeFrontend):
    answer = message(client, system=[text("x", **MARK) for _ in range(5)])
    assert answer.status_code == 200
    assert answer.headers["x-radixserve-ignored"] == "cache_control"
    keeping = frontend.requests[-1].keeping
    assert keeping is not None
    assert len(keeping.marks) == 4


def test_marks_change_no_token_and_are_told_by_their_time(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4, keep_share=1.0) as server:
            plain = {"system": [text("Be kind to all.")], "messages": USER}
            marked = {
                "system": [text("Be kind to all.", **HOUR)],
                "messages": [{"role": "user", "content": [text("Hi", **MARK)]}],
            }
            counts = [
                (await server.ask(f"{PATH}/count_tokens", **fields)).json()
                for fields in (plain, marked)
            ]
            assert counts[0] == counts[1]
            first = await server.ask(PATH, max_tokens=2, **marked)
            used = first.json()["usage"]
            assert first.headers[HEADER] == f"granted; tokens={used['kept_tokens']}"
            creation = used["cache_creation"]
            assert 0 < creation["ephemeral_1h_input_tokens"] < used["kept_tokens"]
            assert sum(creation.values()) == used["cache_creation_input_tokens"]
            second = (await server.ask(PATH, max_tokens=2, **plain)).json()["usage"]
            assert second["cache_read_input_tokens"] == counts[0]["input_tokens"] - 1
            assert "keep" not in second
            await server.settle()

    asyncio.run(scenario())


def test_a_mark_on_the_whole_request_is_at_its_end(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4, keep_share=1.0) as server:
            used = (await server.ask(PATH, max_tokens=2, messages=USER, **HOUR)).json()["usage"]
            assert used["keep"] == "granted"
            assert 0 < used["kept_tokens"] <= sum(
                used[name]
                for name in (
                    "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
                )
            )  # fmt: skip

    asyncio.run(scenario())


def test_a_session_is_named_by_claude_codes_headers(client, frontend: FakeFrontend):
    headers = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}
    message(client, headers, keep_for=90)
    keeping = frontend.requests[-1].keeping
    assert keeping is not None
    assert (keeping.session, keeping.marks) == ("s/a", (Mark(None, 90),))
