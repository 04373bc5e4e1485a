"""Reasoning as the Messages API tells it, switches, and hides it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.server.app import create_app
from radixserve.server.service import Settings
from tests.server.fake import THOUGHT, FakeFrontend, OpeningTokenizer, saying
from tests.server.messages.asking import ignored, message, prompt_of, told


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_comes_before_the_text_and_is_counted(stream: bool):
    with saying(THOUGHT, "none", "think") as (client, _):
        found = told(message(client, stream=stream))
    thinking, text = found["content"]
    assert thinking["type"] == "thinking"
    assert thinking["thinking"] == "One.\n\nTwo."
    assert thinking["signature"]
    assert text["text"] == "Hello!"
    tokens = found["usage"]["output_tokens_details"]["thinking_tokens"]
    assert tokens == len("\nOne.\n\nTwo.\n</think>")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "thinking", [{"type": "disabled"}, {"type": "adaptive", "display": "omitted"}]
)
def test_thinking_that_nobody_wants_to_see_is_not_shown(stream: bool, thinking: dict[str, Any]):
    with saying(THOUGHT, "none", "think") as (client, _):
        found = told(message(client, stream=stream, thinking=thinking))
    assert [each["type"] for each in found["content"]] == ["text"]
    assert found["usage"]["output_tokens_details"]["thinking_tokens"] > 0


@pytest.fixture
def opening() -> Iterator[tuple[TestClient, FakeFrontend]]:
    """A model that thinks unless it is told not to."""
    frontend = FakeFrontend("One.\n</think>\n\nTwo.", max_model_len=1000)
    frontend.tokenizer = OpeningTokenizer()
    app = create_app(frontend, settings=Settings(reasoning_parser="think"))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client, frontend


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"thinking": {"type": "disabled"}}, ("'enable_thinking': False", "'none'")),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, ("'enable_thinking': True",)),
        ({"thinking": {"type": "adaptive"}}, ("'enable_thinking': True",)),
        ({"output_config": {"effort": "high"}}, ("'enable_thinking': True", "'high'")),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
            ("'enable_thinking': False",),
        ),
    ],
)
def test_thinking_is_switched_in_the_template(
    opening: tuple[TestClient, FakeFrontend], fields: dict[str, Any], shown: tuple[str, ...]
):
    client, frontend = opening
    response = message(client, **fields)
    assert ignored(response) <= {"thinking.budget_tokens"}
    for each in shown:
        assert each in prompt_of(frontend)
    kinds = [each["type"] for each in told(response)["content"]]
    if "True" in shown[0]:
        assert kinds == ["thinking", "text"]


def test_a_switch_that_the_template_does_not_have_is_listed(client: TestClient):
    listed = ignored(message(client, thinking={"type": "enabled", "budget_tokens": 2000}))
    assert listed == {"thinking", "thinking.budget_tokens"}
    assert ignored(message(client, thinking={"type": "disabled"})) == {"thinking"}
    listed = ignored(message(client, output_config={"effort": "low", "task_budget": {}}))
    assert listed == {"output_config.effort", "output_config.task_budget"}
