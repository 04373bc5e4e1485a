"""OpenAI's Agents SDK runs its loop of tools over the Responses API, over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from radixserve.engine.frontend import TextDelta, TextRequest
from radixserve.server.app import create_app
from radixserve.server.service import Settings
from tests.server.asking import HANG
from tests.server.fake import MODEL, FakeFrontend
from tests.server.sockets import serving

agents = pytest.importorskip("agents", reason="the Agents SDK is in the extra dev")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


class Forecaster(FakeFrontend):
    """Asks for the weather, and says what it was told."""

    async def generate(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        prompt = self.tokenizer.decode([*request.prompt[3::4]])
        self.answer = "It is 21 degrees in Rome." if "tool: 21 degrees" in prompt else CALL
        async for delta in super().generate(request):
            yield delta


@contextmanager
def server() -> Iterator[tuple[str, Forecaster]]:
    frontend = Forecaster(max_model_len=5000)
    frontend.tokenizer.takes_tools = True
    app = create_app(frontend, settings=Settings(tool_call_parser="hermes"))
    with serving(app) as served:
        yield f"{served.url}/v1", frontend


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_is_answered(stream: bool, stored: bool):
    agents.set_tracing_disabled(True)
    asked: list[str] = []

    @agents.function_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "21 degrees"

    async def scenario(url: str) -> Any:
        async with openai.AsyncOpenAI(
            base_url=url, api_key="none", max_retries=0, timeout=HANG
        ) as client:
            model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)
            forecaster = agents.Agent(
                name="Forecaster", instructions="Help.", model=model, tools=[weather]
            )
            question, how = "What is the weather?", {"auto_previous_response_id": stored}
            if not stream:
                return await agents.Runner.run(forecaster, question, **how)
            result = agents.Runner.run_streamed(forecaster, question, **how)
            async for _ in result.stream_events():
                pass
            return result

    with server() as (url, frontend):
        result = asyncio.run(scenario(url))
    assert result.final_output == "It is 21 degrees in Rome."
    assert asked == ["Rome"]
    assert len(frontend.requests) == 2
    usage = result.context_wrapper.usage
    assert usage.requests == 2
    assert usage.output_tokens == len(CALL) + len(result.final_output)
    kinds = [item.type for item in result.new_items]
    assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]
    assert json.loads(result.new_items[0].raw_item.arguments) == {"city": "Rome"}
