from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.responses import StreamingResponse as Streaming
from starlette.routing import Route

from radixserve.errors import ServerError, printable
from radixserve.remote import api_url
from radixserve.terminal.answer import Measured, Piece, TokenCounts
from radixserve.terminal.client import Client
from tests.terminal.stub import HandClock, Stub, chunk, hosting, sse

HI = [{"role": "user", "content": "Hi there"}]


@contextlib.contextmanager
def asking(app: Starlette, api_key: str | None = None) -> Iterator[Client]:
    with hosting(app) as url, contextlib.closing(Client(url, api_key=api_key)) as client:
        yield client


def everywhere(answer: Callable[[], Response]) -> Starlette:
    """Answers every request alike, except that it lists a model."""

    async def respond(request: Request) -> Response:
        if request.url.path == "/v1/models":
            return JSONResponse({"data": [{"id": "m"}]})
        return answer()

    return Starlette(routes=[Route("/{path:path}", respond, methods=["GET", "POST"])])


def streaming(*events: bytes) -> Callable[[], Response]:
    return lambda: Streaming(iter(events), media_type="text/event-stream")


def complaint(client: Client) -> str:
    """The one line that asking gives."""
    with pytest.raises(ServerError) as caught:
        list(client.stream(HI))
    line = str(caught.value)
    assert "\n" not in line
    assert client.url in line
    return line


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("localhost:8000", "http://localhost:8000/v1"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
        ("https://api.example.com/v1/", "https://api.example.com/v1"),
        ("https://example.com/openai/v1/chat/completions", "https://example.com/openai/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_an_address_may_be_short(given: str, meant: str):
    assert api_url(given) == meant


@pytest.mark.parametrize("given", ["", "http://", "ftp://host", "http://host:99999"])
def test_what_is_no_address_is_one_line(given: str):
    with pytest.raises(ServerError, match="is no address of a server"):
        api_url(given)


def test_an_answer_comes_with_its_tokens_and_its_reuse():
    with asking(Stub(HandClock()).app) as client:
        list(client.stream(HI))
        pieces = list(client.stream(HI))
    assert "".join(piece.text for piece in pieces) == "Hello"
    assert [piece.finish for piece in pieces if piece.finish] == ["stop"]
    assert pieces[-1].counts == TokenCounts(prompt=3, completion=2, cached=2)


def test_settings_are_sent_only_when_they_are_set():
    stub = Stub(HandClock())
    with asking(stub.app) as client:
        list(client.stream(HI))
        list(client.stream(HI, max_tokens=5, temperature=0.0, salt="s"))
    plain, full = stub.bodies
    assert plain == {
        "model": "stub",
        "messages": HI,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert full == {**plain, "max_tokens": 5, "temperature": 0.0, "cache_salt": "s"}


def test_a_server_without_stream_options_is_asked_without_and_only_once_with():
    stub = Stub(HandClock(), refuses=["stream_options"])
    with asking(stub.app) as client:
        for _ in range(2):
            pieces = list(client.stream(HI))
            assert "".join(piece.text for piece in pieces) == "Hello"
            assert all(piece.counts is None for piece in pieces)
    assert ["stream_options" in body for body in stub.bodies] == [True, False, False]


def test_a_server_that_wants_max_completion_tokens_gets_them_and_reports_as_before():
    stub = Stub(HandClock(), refuses=["max_tokens"])
    with asking(stub.app) as client:
        assert list(client.stream(HI, max_tokens=7))[-1].counts is not None
        list(client.stream(HI, max_tokens=8))
    assert [body.get("max_completion_tokens") for body in stub.bodies] == [None, 7, 8]


def test_a_salt_that_is_refused_is_not_dropped():
    stub = Stub(HandClock(), refuses=["cache_salt"])
    with asking(stub.app) as client, pytest.raises(ServerError, match="cache_salt"):
        list(client.stream(HI, salt="s"))
    assert all("cache_salt" in body for body in stub.bodies)


def test_reasoning_is_told_apart():
    app = everywhere(
        streaming(sse(chunk(reasoning_content="Hm.")), sse(chunk("Yes", "stop")), b"data: [DONE]")
    )
    with asking(app) as client:
        assert [(piece.thought, piece.text) for piece in client.stream(HI)] == [
            ("Hm.", ""),
            ("", "Yes"),
        ]


def test_a_stream_without_done_is_whole_once_it_has_finished():
    with asking(everywhere(streaming(sse(chunk("Yes", "stop"))))) as client:
        assert [piece.text for piece in client.stream(HI)] == ["Yes"]


def test_a_dead_server_is_told_from_a_wrong_one():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with contextlib.closing(Client(f"127.0.0.1:{port}")) as client:
        assert "Start a server there" in complaint(client)


def test_what_does_not_speak_http_is_told():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with contextlib.closing(Client(f"127.0.0.1:{listener.getsockname()[1]}")) as client:
            assert "not HTTP" in complaint(client)
        thread.join()


@pytest.mark.parametrize("status", [200, 404])
def test_a_foreign_server_is_sent_to_the_right_path(status: int):
    async def page(request: Request) -> Response:
        return HTMLResponse("<h1>Welcome</h1>", status)

    with asking(Starlette(routes=[Route("/{path:path}", page)])) as client:
        line = complaint(client)
    assert "OpenAI-compatible" in line
    assert "/v1" in line
    assert "Welcome" not in line


def test_a_missing_key_is_asked_for_and_what_the_server_says_cannot_steer_the_terminal():
    with asking(Stub(HandClock(), key="k").app) as client:
        line = complaint(client)
    assert "--api-key" in line
    assert "Wrong key [31m!" in line


def test_the_right_key_is_let_in():
    with asking(Stub(HandClock(), key="k").app, api_key="k") as client:
        assert list(client.stream(HI))


@pytest.mark.parametrize("key", ["schlüssel", "a\nb"])
def test_a_key_that_cannot_be_sent_is_one_line(key: str):
    with pytest.raises(ServerError, match="--api-key"):
        Client("localhost", api_key=key)


@pytest.mark.parametrize("data", [[], None])
def test_a_server_without_a_model_is_told_so(data: list[str] | None):
    async def models(request: Request) -> Response:
        return JSONResponse({"data": data})

    with asking(Starlette(routes=[Route("/v1/models", models)])) as client:
        assert "lists no model" in complaint(client)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: JSONResponse({"error": {"message": "No such model."}}, 404), "No such model. C"),
        (lambda: JSONResponse({"error": "Too many"}, 429), "Too many"),
        (lambda: JSONResponse({"message": "Queue full"}, 503), "busy"),
        (lambda: JSONResponse({"detail": [{"msg": "x"}]}, 422), "422"),
        (lambda: JSONResponse(["odd"], 500), "HTTP 500"),
        (lambda: RedirectResponse("https://other.example/v1"), "https://other.example/v1"),
        (lambda: JSONResponse(chunk("whole")), "OpenAI-compatible"),
        (streaming(sse(chunk("Hel"))), "in the middle"),
        (streaming(sse({"error": {"message": "It broke"}})), "It broke"),
        (streaming(sse({"error": {"code": 5}})), "no reason given"),
        (streaming(b"data: {nonsense\n\n"), "{nonsense"),
        (streaming(sse({"choices": 7})), "no chunk of a chat completion"),
        (streaming(sse([])), "no chunk of a chat completion"),
    ],
)
def test_what_a_broken_server_does_is_one_line(answer: Callable[[], Response], said: str):
    with asking(everywhere(answer)) as client:
        assert said in complaint(client)


def test_a_connection_that_breaks_in_mid_answer_is_one_line():
    def breaking() -> Iterator[bytes]:
        yield sse(chunk("Hel"))
        raise RuntimeError("pulled the plug")

    app = everywhere(lambda: Streaming(breaking(), media_type="text/event-stream"))
    with asking(app) as client:
        assert "broke off" in complaint(client)


def test_times_count_from_the_request_and_rates_from_the_first_token():
    clock = HandClock()
    measured = Measured(clock)
    clock.now = 2.0
    measured.take(Piece())
    assert measured.first is None
    clock.now = 3.0
    measured.take(Piece(text="a"))
    clock.now = 5.0
    measured.take(Piece(text="b", finish="stop"))
    measured.take(Piece(counts=TokenCounts(9, 5, 0)))
    assert (measured.text, measured.first, measured.finish) == ("ab", 3.0, "stop")
    assert measured.tokens_per_second == 2.0


def test_text_keeps_its_lines_and_loses_what_steers_a_terminal():
    assert printable("a\tb\n\x1b]0;title\x07c\x9b1mü\x7f") == "a\tb\n]0;titlec1mü"
