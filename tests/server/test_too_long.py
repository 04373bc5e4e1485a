"""A prompt that is too long is refused with the messages that make it so."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.server.asking import CHAT, error_of
from tests.server.explaining import talk
from tests.server.fake import FakeFrontend


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
