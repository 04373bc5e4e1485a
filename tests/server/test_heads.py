"""Request heads without an end: bounded in bytes and in time, at nobody else's cost."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
import uvicorn
from uvicorn.server import ServerState

from radixserve.server.app import create_app
from radixserve.server.protocol import HEAD_LIMIT, BoundedProtocol
from tests.server.asking import USER
from tests.server.fake import FakeFrontend
from tests.server.sockets import Serving, serving

BEGINNING = b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\n"


@pytest.fixture
def server() -> Iterator[Serving]:
    with serving(create_app(FakeFrontend())) as running:
        yield running


@contextmanager
def connection(server: Serving) -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as made:
        yield made


def answer(made: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    try:
        while part := made.recv(2**16):
            parts.append(part)
    except ConnectionResetError:  # it had not read all that we sent
        pass
    return b"".join(parts)


def works(server: Serving, **headers: str) -> bool:
    url = f"{server.url}/v1/chat/completions"
    return httpx2.post(url, json={"messages": USER}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "endless",
    [b"x-long: " + b"a" * 4096, b"x: y\r\n" * 700, b"a" * 4096],
    ids=["one value", "many headers", "one name"],
)
def test_a_head_without_an_end_is_refused(server: Serving, endless: bytes):
    with connection(server) as made:
        made.sendall(BEGINNING)
        try:
            for _ in range(3 * HEAD_LIMIT // len(endless)):
                made.sendall(endless)
        except (BrokenPipeError, ConnectionResetError):
            pass
        said = answer(made)
    assert said == b"" or said.startswith(b"HTTP/1.1 400")
    assert works(server)


def test_a_head_that_stops_coming_is_refused(server: Serving, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BoundedProtocol, "head_seconds", 0.1)
    with connection(server) as made:
        made.sendall(BEGINNING)
        said = answer(made)
    assert said.startswith(b"HTTP/1.1 400")
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    assert b"content-length: %d\r\n" % len(body) in head
    assert json.loads(body)["error"]["message"] == "The request's head did not come in time."
    assert b"in time" in said


def test_long_heads_that_end_are_served(server: Serving):
    assert works(server, authorization="Bearer " + "k" * (HEAD_LIMIT - 2048))


def test_large_bodies_are_no_heads(server: Serving):
    with connection(server) as made:
        body = b'{"messages": [{"role": "user", "content": "Hi"}]}' + b" " * 3 * HEAD_LIMIT
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        made.sendall(BEGINNING + head % len(body) + body)
        assert answer(made).startswith(b"HTTP/1.1 200")


class Written(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.closed = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.data += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def test_a_head_is_counted_from_its_own_beginning_though_a_large_body_comes_with_it():
    body = b'{"messages": [{"role": "user", "content": "Hi"}]}' + b" " * 3 * HEAD_LIMIT
    head = BEGINNING + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)

    async def scenario() -> None:
        config = uvicorn.Config(create_app(FakeFrontend()), lifespan="off", log_config=None)
        config.load()
        transport = Written()
        protocol = BoundedProtocol(config, ServerState(), {})
        protocol.connection_made(transport)
        # The next request has begun before the first one is answered.
        protocol.data_received(head + body + head[:30])
        protocol.data_received(head[30:])
        protocol.data_received(body)
        async with asyncio.timeout(60):
            while transport.data.count(b"HTTP/1.1 200") < 2:
                assert b"HTTP/1.1 400" not in transport.data
                await asyncio.sleep(0)
        protocol.connection_lost(None)

    asyncio.run(scenario())


REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
    b"content-length: 31\r\n\r\n"
    b'{"prompt": "Hi", "stream":true}'
)
CHUNKED = REQUEST.replace(b"content-length: 31", b"transfer-encoding: chunked").partition(b"{")[0]
NONSENSE = b"\x00 nonsense\r\n\r\n"


@pytest.mark.parametrize(
    ("behind", "answers"),
    [
        (REQUEST[:30], 1),
        (NONSENSE, 1),
        (REQUEST + NONSENSE, 2),
        (CHUNKED + NONSENSE, 1),
    ],
    ids=["half a head", "nonsense", "nonsense behind another request", "a body of nonsense"],
)
def test_what_cannot_be_read_behind_a_request_says_nothing_into_its_answer(
    behind: bytes, answers: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(BoundedProtocol, "head_seconds", 0.01)

    async def scenario() -> bytes:
        frontend = FakeFrontend()
        frontend.hold(after=3)
        config = uvicorn.Config(create_app(frontend), lifespan="off", log_config=None)
        config.load()
        transport = Written()
        protocol = BoundedProtocol(config, ServerState(), {})
        protocol.connection_made(transport)
        async with asyncio.timeout(60):
            protocol.data_received(REQUEST)
            while transport.data.count(b"text_completion") < 3:
                await asyncio.sleep(0)
            protocol.data_received(behind)
            while not protocol._spoilt:
                await asyncio.sleep(0)
            frontend.release()
            while not transport.closed:
                await asyncio.sleep(0)
        protocol.connection_lost(None)
        return transport.data

    said = asyncio.run(scenario())
    assert said.count(b"HTTP/1.1 200") == said.count(b"data: [DONE]") == answers
    assert b"HTTP/1.1 400" not in said
    assert said.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_a_body_of_nonsense_is_refused_where_no_answer_has_begun(server: Serving):
    with connection(server) as made:
        made.sendall(CHUNKED + NONSENSE)
        assert answer(made).startswith(b"HTTP/1.1 400")
    assert works(server)
