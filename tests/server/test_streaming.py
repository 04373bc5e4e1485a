"""Streams and disconnects on a real socket, and OpenAI's own client."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import openai
import pytest

from radixserve.errors import ContextLengthError, OverloadedError
from radixserve.server.app import create_app
from radixserve.server.service import Settings
from tests.server.asking import HANG, USER
from tests.server.fake import ANSWER, MODEL, FakeFrontend
from tests.server.sockets import connected, serving
from tests.text.parsing.samples import TOOLS

CALL = "<tool_call>" + " " * 40 + '{"name": "now", "arguments": {}}</tool_call>'


@pytest.fixture
def frontend() -> FakeFrontend:
    return FakeFrontend()


@pytest.fixture
def url(frontend: FakeFrontend) -> Iterator[str]:
    with serving(create_app(frontend, settings=Settings(keep_alive=0.05))) as served:
        yield served.url


@pytest.fixture
def sdk(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=HANG) as client:
        yield client


def test_headers_and_comments_come_before_the_first_token(url: str, frontend: FakeFrontend):
    frontend.hold()
    body = {"messages": USER, "stream": True}
    with httpx2.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=HANG) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-request-id"]
        lines = response.iter_lines()
        for _ in range(3):
            assert next(lines) == ": keep-alive"
            assert next(lines) == ""
        frontend.release()
        rest = [line for line in lines if line and not line.startswith(":")]
    assert rest[-1] == "data: [DONE]"
    assert len(rest) == 1 + len(ANSWER) + 2


def test_comments_fill_a_silence_in_the_middle_too(url: str, frontend: FakeFrontend):
    frontend.hold(after=2)
    body = {"prompt": "a", "stream": True}
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=HANG) as response:
        lines = response.iter_lines()
        first = next(line for line in lines if line.startswith("data:"))
        assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == ANSWER[0]
        assert next(line for line in lines if line.startswith(":")) == ": keep-alive"
        frontend.release()
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_comments_fill_the_silence_while_tokens_come_that_cannot_be_told_yet():
    frontend = FakeFrontend(CALL, max_model_len=5000)
    frontend.tokenizer.takes_tools = True
    frontend.pace = 0.01
    settings = Settings(keep_alive=0.05, tool_call_parser="hermes")
    body = {"messages": USER, "tools": TOOLS, "stream": True}
    with serving(create_app(frontend, settings=settings)) as served:
        url = f"{served.url}/v1/chat/completions"
        with httpx2.stream("POST", url, json=body, timeout=HANG) as response:
            lines = [line for line in response.iter_lines() if line]
    role = next(at for at, line in enumerate(lines) if '"role":"assistant"' in line)
    call = next(at for at, line in enumerate(lines) if '"tool_calls":' in line)
    assert lines[role + 1 : call] == [": keep-alive"] * (call - role - 1)
    assert call - role > 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 2])
def test_a_client_that_leaves_aborts_its_request(
    url: str,
    frontend: FakeFrontend,
    caplog: pytest.LogCaptureFixture,
    stream: bool,
    after: int,
):
    caplog.set_level(logging.INFO, logger="radixserve")
    frontend.hold(after=after)
    connection = connected(url, "/v1/chat/completions", messages=USER, stream=stream)
    assert frontend.asked.acquire(timeout=HANG)
    assert not frontend.aborted.acquire(blocking=False)
    connection.close()
    assert frontend.aborted.acquire(timeout=HANG)
    frontend.release()
    again = httpx2.post(f"{url}/v1/chat/completions", json={"messages": USER}, timeout=HANG)
    assert again.status_code == 200
    assert "POST /v1/chat/completions 499 " in caplog.text


def test_leaving_aborts_every_prompt_of_a_request(url: str, frontend: FakeFrontend):
    frontend.hold()
    connection = connected(url, "/v1/completions", prompt=["a", "b", "c"], stream=False)
    for _ in range(3):
        assert frontend.asked.acquire(timeout=HANG)
    connection.close()
    for _ in range(3):
        assert frontend.aborted.acquire(timeout=HANG)
    text = httpx2.get(f"{url}/metrics", timeout=HANG).text
    assert 'request_success_total{finished_reason="abort",model_name="fake/model"} 3.0' in text


def test_a_full_queue_found_while_the_stream_waits_still_has_its_status(
    url: str, frontend: FakeFrontend
):
    frontend.refuse = OverloadedError("Too many wait.")
    body = {"messages": USER, "stream": True}
    response = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=HANG)
    assert response.status_code == 503


def test_two_requests_with_one_id_do_not_mix(url: str, frontend: FakeFrontend):
    frontend.hold(after=1)

    def ask(prompt: str) -> str:
        body = {"prompt": prompt, "echo": True}
        headers = {"x-request-id": "the-same"}
        response = httpx2.post(f"{url}/v1/completions", json=body, headers=headers, timeout=HANG)
        assert response.headers["x-request-id"] == "the-same"
        return str(response.json()["choices"][0]["text"])

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(ask, prompt) for prompt in ("one", "two")]
        for _ in answers:
            assert frontend.asked.acquire(timeout=HANG)
        frontend.release()
        assert [answer.result(HANG) for answer in answers] == ["one" + ANSWER, "two" + ANSWER]


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_unfinished_when_the_server_ends_is_told_so(frontend: FakeFrontend, stream: bool):
    frontend.hold(after=1)
    with serving(create_app(frontend), drain=0) as served, ThreadPoolExecutor(1) as pool:
        body = {"messages": USER, "stream": stream}
        url = f"{served.url}/v1/chat/completions"
        answer = pool.submit(httpx2.post, url, json=body, timeout=HANG)
        assert frontend.asked.acquire(timeout=HANG)
        served.stop()
        response = answer.result(HANG)
    assert frontend.aborted.acquire(timeout=HANG)
    if stream:
        *_, last, done, empty = response.text.split("\n\n")
        assert (done, empty) == ("data: [DONE]", "")
        error = json.loads(last.removeprefix("data: "))["error"]
    else:
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        error = response.json()["error"]
    assert error["code"] == "server_overloaded"


def test_what_is_running_when_the_server_is_told_to_end_is_finished(frontend: FakeFrontend):
    frontend.hold(after=1)
    with serving(create_app(frontend), drain=60) as served, ThreadPoolExecutor(1) as pool:
        url = f"{served.url}/v1/completions"
        answer = pool.submit(httpx2.post, url, json={"prompt": "a"}, timeout=HANG)
        assert frontend.asked.acquire(timeout=HANG)
        served.stop()
        frontend.release()
        assert answer.result(HANG).json()["choices"][0]["text"] == ANSWER


def test_the_sdk_reads_whole_answers(sdk: openai.OpenAI):
    answer = sdk.chat.completions.create(
        model=MODEL, messages=USER, logprobs=True, top_logprobs=1, n=2
    )
    assert [choice.message.content for choice in answer.choices] == [ANSWER + "0", ANSWER + "1"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.choices[0].logprobs is not None
    assert sdk.completions.create(model=MODEL, prompt="a").choices[0].text == ANSWER
    assert [model.id for model in sdk.models.list()] == [MODEL]
    assert sdk.models.retrieve(MODEL).id == MODEL


def test_the_sdk_reads_streams(sdk: openai.OpenAI):
    options = {"include_usage": True}
    stream = sdk.chat.completions.create(
        model=MODEL, messages=USER, stream=True, stream_options=options
    )
    chunks = list(stream)
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == ANSWER
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(ANSWER)
    with sdk.chat.completions.stream(model=MODEL, messages=USER) as helper:
        assert helper.get_final_completion().choices[0].message.content == ANSWER


def test_the_sdk_maps_errors_to_its_own_classes(sdk: openai.OpenAI, frontend: FakeFrontend):
    create = sdk.chat.completions.create
    with pytest.raises(openai.BadRequestError) as refused:
        create(model=MODEL, messages=USER, temperature=9)
    assert (refused.value.param, refused.value.type) == ("temperature", "invalid_request_error")
    assert refused.value.request_id
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="other", messages=USER)
    assert missing.value.code == "model_not_found"
    frontend.refuse = ContextLengthError(300, 100)
    with pytest.raises(openai.BadRequestError) as long:
        create(model=MODEL, messages=USER)
    assert long.value.code == "context_length_exceeded"
    frontend.refuse = OverloadedError("Too many wait.")
    with pytest.raises(openai.InternalServerError) as full:
        create(model=MODEL, messages=USER)
    assert full.value.status_code == 503


def test_the_sdk_raises_over_a_failure_inside_a_stream(sdk: openai.OpenAI, frontend: FakeFrontend):
    frontend.fail_after = 3
    stream = sdk.chat.completions.create(model=MODEL, messages=USER, stream=True)
    said: list[str | None] = []
    with pytest.raises(openai.APIError, match="It broke") as failed:
        said.extend(chunk.choices[0].delta.content for chunk in stream)
    assert "".join(text or "" for text in said) == ANSWER[:3]
    assert failed.value.code == "answer_error"
