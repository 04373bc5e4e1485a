"""What a client reads when the engine refuses, fails, or is gone."""

from __future__ import annotations

import logging

import pytest
from starlette.testclient import TestClient

from radixserve.errors import (
    ContextLengthError,
    DeadlineError,
    EngineDeadError,
    LostError,
    OverloadedError,
)
from radixserve.server.app import create_app
from radixserve.server.service import Settings
from tests.server.asking import chat, complete, error_of, events
from tests.server.fake import ANSWER, FakeFrontend


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_503_with_a_time_to_retry(
    client: TestClient, frontend: FakeFrontend, stream: bool
):
    for seconds, shown in ((0.2, "1"), (7.5, "8"), (1e6, "120")):
        frontend.refuse = OverloadedError("Too many wait.", retry_after=seconds)
        response = chat(client, stream=stream)
        error = error_of(response, 503)
        assert (error["type"], error["code"]) == ("server_error", "server_overloaded")
        assert response.headers["retry-after"] == shown


def test_a_queue_that_is_full_already_is_refused_before_tokenizing(frontend: FakeFrontend):
    frontend.waiting = 3
    with TestClient(create_app(frontend, settings=Settings(max_queue=3))) as client:
        response = chat(client)
        error_of(response, 503)
        assert response.headers["retry-after"] == "7"
        error_of(complete(client), 503)
        assert frontend.tokenizer.encoded == 0
        frontend.waiting = 2
        assert chat(client).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_has_its_own_status_even_in_a_stream(
    client: TestClient, frontend: FakeFrontend, stream: bool
):
    frontend.refuse = ContextLengthError(300, 100)
    error = error_of(chat(client, stream=stream))
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_comes_back_is_503_with_a_time_to_retry(
    client: TestClient, frontend: FakeFrontend, stream: bool
):
    frontend.refuse = EngineDeadError("secret detail", retry_after=2.5)
    response = chat(client, stream=stream)
    error = error_of(response, 503)
    assert (error["type"], error["code"]) == ("server_error", "server_overloaded")
    assert "secret" not in error["message"]
    assert "once more" in error["message"]
    assert response.headers["retry-after"] == "3"


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_is_504_and_not_to_be_retried(
    client: TestClient, frontend: FakeFrontend, stream: bool
):
    frontend.refuse = DeadlineError("It took too long.")
    response = chat(client, stream=stream)
    error = error_of(response, 504)
    assert (error["type"], error["code"]) == ("timeout_error", "deadline_exceeded")
    assert response.headers["x-should-retry"] == "false"


def test_a_dead_engine_is_500_on_calls_and_503_on_health(
    client: TestClient, frontend: FakeFrontend
):
    assert client.get("/health").status_code == 200
    frontend.refuse = EngineDeadError("secret detail")
    frontend.alive = False
    error = error_of(chat(client), 500)
    assert (error["type"], error["code"]) == ("server_error", "engine_dead")
    assert "secret" not in error["message"]
    for path in ("/health", "/ping"):
        assert client.get(path).status_code == 503
        assert client.get(path).content == b""


def test_an_answer_that_fails_is_500(client: TestClient, frontend: FakeFrontend):
    frontend.fail_after = 3
    error = error_of(chat(client), 500)
    assert error["type"] == "server_error"
    assert "It broke." in error["message"]


def test_a_failure_inside_a_stream_is_an_event_before_its_end(
    client: TestClient, frontend: FakeFrontend
):
    frontend.fail_after = 3
    data = events(chat(client, stream=True))
    assert set(data[-1]) == {"error"}
    assert set(data[-1]["error"]) == {"message", "type", "param", "code"}
    said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in data[:-1])
    assert said == ANSWER[:3]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in data[:-1])


@pytest.mark.parametrize("stream", [False, True])
def test_what_nobody_foresaw_tells_nothing_to_the_client_and_all_to_the_log(
    client: TestClient, frontend: FakeFrontend, caplog: pytest.LogCaptureFixture, stream: bool
):
    frontend.die_after = 2 if stream else 0
    response = chat(client, stream=stream)
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    if stream:
        assert events(response)[-1]["error"]["code"] == "internal_error"
    else:
        assert error_of(response, 500)["code"] == "internal_error"
    assert "secret detail" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("step", ["render_chat", "encode", "fewest_tokens"])
def test_a_prompt_for_which_there_is_no_memory_is_500_and_the_next_one_is_answered(
    client: TestClient,
    frontend: FakeFrontend,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: str,
    stream: bool,
):
    def broken(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(frontend.tokenizer, step, broken)
        assert error_of(chat(client, stream=stream), 500)["code"] == "internal_error"
    assert "MemoryError" in caplog.text
    assert not frontend.requests
    assert chat(client).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_has_lost_all_is_503_with_a_time_to_retry(
    client: TestClient, frontend: FakeFrontend, stream: bool
):
    frontend.refuse = LostError("secret detail")
    response = chat(client, stream=stream)
    error = error_of(response, 503)
    assert error["code"] == "server_overloaded"
    assert "once more" in error["message"]
    assert "secret" not in error["message"]
    assert response.headers["retry-after"] == "1"


def test_one_failed_prompt_ends_the_others(client: TestClient, frontend: FakeFrontend):
    frontend.fail_after = 1
    error_of(complete(client, ["a", "b", "c"]), 500)
    assert len(frontend.requests) == 3
    frontend.fail_after = None
    assert complete(client, ["a", "b"]).status_code == 200


def test_request_ids_are_echoed_if_sane_and_made_if_not(client: TestClient, frontend: FakeFrontend):
    def answered(identity: str) -> str:
        return chat(client, headers={"x-request-id": identity}).headers["x-request-id"]

    assert answered("trace-1 a/b") == "trace-1 a/b"
    assert answered("x" * 128) == "x" * 128
    for odd in ("x" * 129, "x" * 1_000_000, "caf\xe9", "a\tb", ""):
        made = client.post(
            "/v1/completions",
            json={"prompt": "a"},
            headers={b"x-request-id": odd.encode("latin-1")},  # type: ignore[dict-item]
        ).headers["x-request-id"]
        assert made.startswith("req-")
    chat(client, headers={"x-request-id": "same"})
    chat(client, headers={"x-request-id": "same"})
    ids = [request.id for request in frontend.requests]
    assert len(set(ids)) == len(ids)
    assert not any("same" in each for each in ids)
    assert error_of(client.get("/nothing", headers={"x-request-id": "mine"}), 404)


def test_every_request_has_one_line_in_the_log_and_no_secret(
    client: TestClient, frontend: FakeFrontend, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, logger="radixserve")
    marker = "S3CRET"
    frontend.answer = marker
    chat(client, messages=[{"role": "user", "content": marker}], cache_salt=marker, user=marker)
    complete(client, marker, stream=True)
    client.get("/v1/models?key=" + marker)
    lines = [r.getMessage() for r in caplog.records if r.name == "radixserve.access"]
    assert len(lines) == 3
    assert "POST /v1/chat/completions 200 prompt=23 cached=0 completion=6" in lines[0]
    assert marker not in caplog.text
    assert marker not in client.get("/metrics").text
    assert marker not in client.get("/health").text


def test_prompts_are_rendered_and_tokenized_off_the_event_loop(
    client: TestClient, frontend: FakeFrontend
):
    chat(client)
    complete(client, ["a", "b"])
    assert frontend.threads
    assert frontend.tokenizer.threads
    assert not frontend.threads & frontend.tokenizer.threads


def test_a_path_cannot_forge_a_line_of_the_log(
    client: TestClient, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, logger="radixserve")
    client.get("/a%0AINFO%20forged")
    [line] = [r.getMessage() for r in caplog.records if r.name == "radixserve.access"]
    assert "\n" not in line
