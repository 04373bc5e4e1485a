"""SIGTERM and SIGINT: what runs may finish, nothing new begins, a second one does not wait."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.server.asking import USER
from tests.server.fake import ANSWER

PATIENCE = 60
"""Seconds; what takes longer is taken for a hang."""
STREAMS = 3


@contextmanager
def serving(seconds: float, *letters: str) -> Iterator[tuple[subprocess.Popen[str], httpx2.Client]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.draining", str(seconds), *letters],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with httpx2.Client(base_url=url, timeout=PATIENCE) as client:
                yield process, client
        finally:
            process.kill()


@contextmanager
def streaming(client: httpx2.Client) -> Iterator[list[Iterator[str]]]:
    """The lines of some streams that have begun."""
    body = {"messages": USER, "stream": True}
    with ExitStack() as stack:
        streams = []
        for _ in range(STREAMS):
            answer = stack.enter_context(client.stream("POST", "/v1/chat/completions", json=body))
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            streams.append(lines)
        yield streams


def data(lines: Iterator[str]) -> list[str]:
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def text(chunks: list[str]) -> str:
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks]
    return "".join(delta.get("content", "") for delta in deltas)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_finishes_and_what_comes_is_refused(number: int):
    with serving(PATIENCE) as (process, client), streaming(client) as streams:
        process.send_signal(number)
        while client.get("/health").status_code != 503:
            pass
        refused = client.post("/v1/chat/completions", json={"messages": USER})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_overloaded"
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        process.stdin.write("go on\n")
        process.stdin.flush()
        for lines in streams:
            *chunks, done = data(lines)
            assert done == "[DONE]"
            assert text(chunks) == ANSWER
        assert process.wait(PATIENCE) == 0


def test_what_does_not_finish_in_time_gets_an_error():
    with serving(0.1) as (process, client), streaming(client) as streams:
        process.send_signal(signal.SIGTERM)
        for lines in streams:
            *chunks, error, done = data(lines)
            assert text(chunks) == ANSWER[:2]
            assert json.loads(error)["error"]["code"] == "server_overloaded"
            assert done == "[DONE]"
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("signals", [1, 2])
def test_a_client_that_does_not_read_its_answer_holds_nothing_up(signals: int):
    with serving(0.1 if signals == 1 else 10 * PATIENCE, "100000") as (process, client):
        parts = urlsplit(str(client.base_url))
        with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE) as deaf:
            body = json.dumps({"messages": USER, "stream": True}).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\n"
            head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            deaf.sendall(head + body)
            assert deaf.recv(12) == b"HTTP/1.1 200"
            assert client.get("/health").status_code == 200, "it does not hold up others either"
            process.send_signal(signal.SIGTERM)
            if signals == 2:
                while client.get("/health").status_code != 503:
                    pass
                process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


def test_a_second_signal_does_not_wait():
    with serving(10 * PATIENCE) as (process, client), streaming(client):
        process.send_signal(signal.SIGTERM)
        while client.get("/health").status_code != 503:
            pass
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


def test_an_idle_server_ends_at_once():
    with serving(10 * PATIENCE) as (process, client):
        assert client.get("/health").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_signal_while_the_server_starts_ends_it_in_order() -> None:
    command = [sys.executable, "-m", "tests.server.draining", "60", "early"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0
    assert ended.stderr == ""
