"""Anthropic's own client, over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import pytest

from radixserve.errors import ContextLengthError, DeadlineError, OverloadedError
from radixserve.server.app import create_app
from radixserve.server.service import Settings
from tests.server.asking import HANG
from tests.server.fake import ANSWER, MODEL, THOUGHT, FakeFrontend
from tests.server.messages.asking import PATH, TOOLS
from tests.server.sockets import connected, serving
from tests.server.tenants.people import KEYS, limited, registry
from tests.text.parsing.samples import SAMPLES, THREE

ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 5000,
    "messages": [{"role": "user", "content": "Hi"}],
}


@contextmanager
def sdk(
    text: str = ANSWER, tools: str = "none", style: str = "none", **settings: Any
) -> Iterator[tuple[anthropic.Anthropic, FakeFrontend]]:
    frontend = FakeFrontend(text, max_model_len=9000)
    frontend.tokenizer.takes_tools = True
    server = Settings(tool_call_parser=tools, reasoning_parser=style, keep_alive=0.05)
    app = create_app(frontend, settings=server, **settings)
    with (
        serving(app) as served,
        anthropic.Anthropic(
            base_url=served.url, api_key=KEYS["alice"], max_retries=0, timeout=HANG
        ) as client,
    ):
        yield client, frontend


def test_it_reads_whole_answers_and_counts():
    with sdk() as (client, _):
        answer = client.messages.create(**ASKED)
        assert (answer.content[0].type, answer.content[0].text) == ("text", ANSWER)
        assert (answer.role, answer.type, answer.model) == ("assistant", "message", MODEL)
        assert answer.stop_reason == "end_turn"
        usage = answer.usage
        asked = {name: ASKED[name] for name in ("model", "messages")}
        counted = client.messages.count_tokens(**asked).input_tokens
        assert usage.cache_read_input_tokens is not None
        assert usage.cache_creation_input_tokens is not None
        assert counted == (
            usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
        )
        assert usage.output_tokens == len(ANSWER)
        assert answer._request_id


def test_it_reads_streams_through_pings():
    with sdk() as (client, frontend):
        frontend.hold(after=2)
        with client.messages.stream(**ASKED) as stream:
            pieces = []
            for piece in stream.text_stream:
                pieces.append(piece)
                if len(pieces) == 2:
                    frontend.release()
            final = stream.get_final_message()
        assert "".join(pieces) == ANSWER
        assert final.content[0].text == ANSWER
        assert final.stop_reason == "end_turn"
        assert final.usage.output_tokens == len(ANSWER)


def test_it_calls_tools_and_sends_their_results_back():
    with sdk(SAMPLES["hermes three"].text, "hermes") as (client, frontend):
        whole = client.messages.create(**ASKED, tools=TOOLS)
        with client.messages.stream(**ASKED, tools=TOOLS) as stream:
            streamed = stream.get_final_message()
        for answer in (whole, streamed):
            calls = [block for block in answer.content if block.type == "tool_use"]
            assert [(call.name, call.input) for call in calls] == THREE
            assert len({call.id for call in calls}) == 3
            assert answer.stop_reason == "tool_use"
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}
            for call in calls
        ]
        again = [
            *ASKED["messages"],
            {"role": "assistant", "content": streamed.content},
            {"role": "user", "content": results},
        ]
        frontend.answer = "It is warm."
        last = client.messages.create(**{**ASKED, "messages": again}, tools=TOOLS)
        assert last.content[0].text == "It is warm."
        assert bytes(frontend.requests[-1].prompt[3::4]).count(b"tool: 21 degrees") == 3


def test_its_tool_runner_runs_a_loop():
    said: list[str] = []
    with sdk(SAMPLES["hermes"].text, "hermes") as (client, frontend):

        @anthropic.beta_tool
        def get_weather(city: str, days: int) -> str:
            """The weather.

            Args:
                city: Where.
                days: For how long.
            """
            said.append(f"{city} {days}")
            frontend.answer = "It is warm."
            return "21 degrees"

        runner = client.beta.messages.tool_runner(**ASKED, tools=[get_weather])
        final = runner.until_done()
    assert said == ["Rome 3"]
    assert final.content[0].text == "It is warm."


def test_it_reads_thinking_and_sends_it_back():
    with sdk(THOUGHT, style="think") as (client, _):
        thinking = {"type": "enabled", "budget_tokens": 1024}
        with client.messages.stream(**ASKED, thinking=thinking) as stream:
            final = stream.get_final_message()
        thought, text = final.content
        assert (thought.type, thought.thinking) == ("thinking", "One.\n\nTwo.")
        assert thought.signature
        assert text.text == "Hello!"
        again = [
            *ASKED["messages"],
            {"role": "assistant", "content": final.content},
            *ASKED["messages"],
        ]
        response = client.messages.with_raw_response.create(**{**ASKED, "messages": again})
        assert "x-radixserve-ignored" not in response.headers


def test_it_lists_models():
    with sdk() as (client, _):
        [model] = client.models.list()
        assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
        assert client.models.retrieve(MODEL).created_at == model.created_at


def test_it_maps_errors_to_its_own_classes():
    with sdk() as (client, frontend):
        with pytest.raises(anthropic.BadRequestError) as refused:
            client.messages.create(**ASKED, extra_body={"temperature": 9})
        assert (refused.value.type, refused.value.error_code) == (
            "invalid_request_error",
            "invalid_value",
        )
        assert refused.value.request_id
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**{**ASKED, "model": "other"})
        frontend.refuse = ContextLengthError(300, 100)
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            client.messages.create(**ASKED)
        frontend.refuse = OverloadedError("Too many wait.")
        with pytest.raises(anthropic.InternalServerError) as full:
            client.messages.create(**ASKED)
        assert (full.value.status_code, full.value.type) == (503, "overloaded_error")
        frontend.refuse = DeadlineError("It took too long.")
        with pytest.raises(anthropic.InternalServerError) as late:
            client.messages.create(**ASKED)
        assert late.value.status_code == 504


def test_it_raises_over_a_failure_inside_a_stream():
    with sdk() as (client, frontend):
        frontend.fail_after = 3
        said: list[str] = []
        with (
            pytest.raises(anthropic.APIStatusError, match="It broke"),
            client.messages.stream(**ASKED) as stream,
        ):
            said.extend(stream.text_stream)
        assert "".join(said) == ANSWER[:3]


def test_tenants_are_known_by_its_keys():
    tenants = registry(limited("requests_per_minute = 1"))
    with sdk(tenants=tenants) as (client, _):
        assert client.messages.create(**ASKED).content
        with pytest.raises(anthropic.RateLimitError) as limit:
            client.messages.create(**ASKED)
        assert limit.value.response.headers["retry-after"]
        with pytest.raises(anthropic.AuthenticationError):
            client.with_options(api_key="nonsense").messages.create(**ASKED)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_aborts_its_request(stream: bool):
    frontend = FakeFrontend()
    frontend.hold(after=2)
    with serving(create_app(frontend)) as served:
        connection = connected(served.url, PATH, stream=stream, **ASKED)
        assert frontend.asked.acquire(timeout=HANG)
        assert not frontend.aborted.acquire(blocking=False)
        connection.close()
        assert frontend.aborted.acquire(timeout=HANG)
        frontend.release()


def test_what_is_unfinished_when_the_server_ends_is_told_so():
    frontend = FakeFrontend()
    frontend.hold(after=1)
    with (
        serving(create_app(frontend), drain=0) as served,
        anthropic.Anthropic(
            base_url=served.url, api_key="-", max_retries=0, timeout=HANG
        ) as client,
        client.messages.stream(**ASKED) as stream,
    ):
        assert next(iter(stream.text_stream)) == ANSWER[0]
        served.stop()
        with pytest.raises(anthropic.APIStatusError) as ended:
            stream.until_done()
    assert ended.value.type == "overloaded_error"
    assert frontend.aborted.acquire(timeout=HANG)
