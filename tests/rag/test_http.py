"""Questions to a server: the same order, reuse told by usage, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from radixserve.engine.llm import LLM
from radixserve.errors import InvalidRequestError, ServerError
from radixserve.rag import Document, Rag
from tests.rag.asked import SETTINGS, documents, order
from tests.rag.conftest import KEY
from tests.server.sockets import serving

NAMES = ("trees", "pages", "leases")


def test_a_server_is_asked_and_told_apart_as_a_model_in_process_is(url: str, llm: LLM):
    with Rag(url, api_key=KEY, order="cached", cache_salt="one", **SETTINGS) as remote:
        local = Rag(llm, order="cached", **SETTINGS)
        for question, names in (
            ("What?", NAMES),
            ("Why?", NAMES[::-1]),
            ("Who?", ("salts", "trees")),
        ):
            there, here = (each.ask(question, documents(*names)) for each in (remote, local))
            assert there.text == here.text
            assert order(there) == order(here)
            assert there.cached_tokens == here.cached_tokens
            assert (there.counted, here.counted) == ("by document", "exact")
            for one, other in zip(there.documents, here.documents, strict=True):
                assert one.tokens == pytest.approx(other.tokens, abs=1)
                assert one.reused == pytest.approx(other.reused, abs=1)
                assert one.seen == other.seen


def test_a_conversation_with_a_server_grows_out_of_what_is_cached(url: str, llm: LLM):
    with Rag(url, api_key=KEY, cache_salt="six", **SETTINGS) as remote:
        local = Rag(llm, **SETTINGS)
        history, before = [], 0
        for question, names in (("What?", ("trees",)), ("Why?", ("pages", "trees")), ("So?", ())):
            there, here = (
                each.ask(question, documents(*names), history=history) for each in (remote, local)
            )
            assert there.messages == here.messages
            assert there.cached_tokens >= before
            for one, other in zip(there.documents, here.documents, strict=True):
                assert one.tokens == pytest.approx(other.tokens, abs=1)
                assert one.reused == pytest.approx(other.reused, abs=1)
            history, before = there.history, there.prompt_tokens


def test_tasks_ask_a_server_at_once_in_one_order(url: str):
    async def together() -> tuple[set[str], int]:
        async with Rag(url, api_key=KEY, order="cached", cache_salt="two", **SETTINGS) as rag:
            asked = (rag.aask("What?", documents(*each)) for each in itertools.permutations(NAMES))
            answers = await asyncio.gather(*asked)
            assert {tuple(order(each)) for each in answers} == {NAMES}
            again = await rag.aask("Why?", documents(*NAMES[::-1]))
        return {each.text for each in answers}, again.reused_tokens

    texts, reused = asyncio.run(together())
    assert len(texts) == 1
    assert reused > 0


def test_one_object_serves_one_event_loop_after_the_other(url: str):
    rag = Rag(url, api_key=KEY, cache_salt="three", **SETTINGS)

    async def asked() -> int | None:
        try:
            return (await rag.aask("What?", documents("trees"))).cached_tokens
        finally:
            await rag.aclose()

    assert asyncio.run(asked()) == 0
    assert asyncio.run(asked()) != 0


def test_tokens_are_estimated_where_they_should_not_be_counted(url: str):
    with Rag(url, api_key=KEY, cache_salt="four", count_tokens=False, **SETTINGS) as rag:
        answer = rag.ask("What?", documents(*NAMES))
        counted = Rag(url, api_key=KEY, cache_salt="five", **SETTINGS)
        exact = counted.ask("What?", documents(*NAMES))
        counted.close()
    assert answer.counted == "estimated"
    for one, other in zip(answer.documents, exact.documents, strict=True):
        assert one.tokens == pytest.approx(other.tokens, rel=0.2)


def test_too_long_documents_are_refused_with_what_to_do(url: str):
    with (
        Rag(url, api_key=KEY, **SETTINGS) as rag,
        pytest.raises(InvalidRequestError, match=r"Pass fewer or shorter ones.*'huge'") as caught,
    ):
        rag.ask("What?", [*documents("trees"), Document("huge", "word " * 600)])
    assert (caught.value.param, caught.value.code) == ("documents", "context_length_exceeded")


@pytest.mark.parametrize("key", [None, "wrong"])
def test_a_server_that_wants_a_key_is_told_so(url: str, key: str | None):
    with (
        Rag(url, api_key=key, **SETTINGS) as rag,
        pytest.raises(ServerError, match="pass its api_key"),
    ):
        rag.ask("What?", documents("trees"))


def test_a_setting_that_the_server_refuses_is_told_in_its_words(url: str):
    with (
        Rag(url, api_key=KEY, **SETTINGS) as rag,
        pytest.raises(InvalidRequestError, match="temperature must be between") as caught,
    ):
        rag.ask("What?", documents("trees"), temperature=7)
    assert caught.value.param == "temperature"


def test_a_server_that_is_down_is_one_line_and_no_order_to_expect():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with Rag(f"127.0.0.1:{port}", order="cached", **SETTINGS) as rag:
        for _ in range(2):
            with pytest.raises(ServerError, match="Start a server there"):
                rag.ask("What?", documents("trees"))

    async def asked() -> None:
        async with Rag(f"127.0.0.1:{port}", **SETTINGS) as rag:
            await rag.aask("What?", documents("trees"))

    with pytest.raises(ServerError, match="Start a server there"):
        asyncio.run(asked())


def test_no_address_is_refused_at_once():
    with pytest.raises(ServerError, match="is no address"):
        Rag("ftp://nowhere")


def foreign(answer: Callable[[Any], Response], *, tokenize: int = 404) -> Starlette:
    """A server of others: ``answer`` is given the body of a chat."""

    async def models(request: Request) -> Response:
        return JSONResponse({"data": [{"id": "theirs"}]})

    async def chat(request: Request) -> Response:
        return answer(await request.json())

    async def count(request: Request) -> Response:
        return Response(status_code=tokenize)

    routes = [
        Route("/v1/models", models),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/tokenize", count, methods=["POST"]),
    ]
    return Starlette(routes=routes)


def plain(body: Any, **usage: Any) -> Response:
    assert body["model"] == "theirs"
    counts = {"prompt_tokens": 100, "completion_tokens": 3, **usage}
    message = {"role": "assistant", "content": "Yes."}
    return JSONResponse({"choices": [{"index": 0, "message": message}], "usage": counts})


@pytest.mark.parametrize("tokenize", [404, 200, 503])
def test_a_server_that_says_and_counts_nothing_is_good_enough(tokenize: int):
    with serving(foreign(plain, tokenize=tokenize)) as served, Rag(served.url) as rag:
        for _ in range(2):
            answer = rag.ask("What?", documents(*NAMES))
            assert answer.text == "Yes."
            assert answer.cached_tokens is None
            assert [each.reused for each in answer.documents] == [None] * 3
            assert answer.counted == "estimated"
            assert 0 < sum(each.tokens for each in answer.documents) < 100
    assert "?" in answer.table()


@pytest.mark.parametrize(
    ("status", "body", "advice"),
    [
        (401, {"error": {"message": "Who are you?"}}, "pass its api_key"),
        (429, {"error": {"message": "Too many."}}, "busy.*Too many.*try again later"),
        (503, {"error": {"message": "Full."}}, "busy.*try again later"),
        (404, {"error": {"message": "No such model."}}, "Check the address and model"),
        (404, {}, "usually ends in /v1"),
        (500, {"error": {"message": "Oh."}}, "cannot answer: HTTP 500: Oh"),
        (200, {"choices": []}, "not as an OpenAI-compatible server"),
        (200, [1], "not as an OpenAI-compatible server"),
    ],
)
def test_what_a_server_says_is_told_in_one_line_with_what_to_do(
    status: int, body: Any, advice: str
):
    app = foreign(lambda _: JSONResponse(body, status))
    with (
        serving(app) as served,
        Rag(served.url) as rag,
        pytest.raises(ServerError, match=advice) as caught,
    ):
        rag.ask("What?", documents("trees"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("status", [400, 413])
def test_too_long_for_others_is_too_long_for_us(status: int):
    error = {"message": "Too many tokens.", "code": "context_length_exceeded"}
    app = foreign(lambda _: JSONResponse({"error": error}, status))
    with (
        serving(app) as served,
        Rag(served.url) as rag,
        pytest.raises(InvalidRequestError, match="Pass fewer or shorter ones"),
    ):
        rag.ask("What?", documents("trees"))


def test_fields_and_none_are_sent_as_they_were_meant():
    bodies: list[Any] = []

    def answer(body: Any) -> Response:
        bodies.append(body)
        return plain(body)

    with (
        serving(foreign(answer)) as served,
        Rag(served.url, max_tokens=None, max_completion_tokens=9, cache_salt="s") as rag,
    ):
        rag.ask("What?", documents("trees"), top_p=0.5)
    [body] = bodies
    assert "max_tokens" not in body
    assert {name: body[name] for name in ("max_completion_tokens", "top_p", "cache_salt")} == {
        "max_completion_tokens": 9,
        "top_p": 0.5,
        "cache_salt": "s",
    }
    assert body["messages"][-1] == {"role": "user", "content": "What?"}
