"""What clients see of an engine that is stopped or killed in its process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from radixserve.engine.process import supervisor
from radixserve.engine.process.supervisor import SupervisedLLM
from radixserve.server.app import create_app
from radixserve.server.prefixes import FilePrefix, Prefixes
from radixserve.server.service import Settings
from tests.engine.saying import TEXT
from tests.engine.supervised import running
from tests.server.asking import CHAT, COMPLETIONS, error_of
from tests.server.stack import cached, said


@asynccontextmanager
async def served(
    directory: Path,
    how: str = "well",
    *,
    server: Settings | None = None,
    prefixes: Prefixes | None = None,
    **settings: object,
) -> AsyncIterator[tuple[SupervisedLLM, httpx2.AsyncClient]]:
    async with running(directory, how, **settings) as engine:
        app = create_app(engine, settings=server, prefixes=prefixes)
        transport = httpx2.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url="http://here") as client,
        ):
            yield engine, client


async def health(client: httpx2.AsyncClient, status: int) -> None:
    """Wait until /health answers with ``status``."""
    while (await client.get("/health")).status_code != status:
        await asyncio.sleep(0.01)


def test_an_engine_that_stands_still_is_unwell_and_comes_back(tmp_path):
    async def scenario() -> None:
        async with served(tmp_path, "slow", step_timeout=0.5) as (engine, client):
            asked = {"prompt": "Hello?", "max_tokens": 300}
            answer = asyncio.create_task(client.post(COMPLETIONS, json=asked))
            stream = asyncio.create_task(client.post(COMPLETIONS, json={**asked, "stream": True}))
            while not engine.stats().generated_tokens:
                await asyncio.sleep(0)
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGSTOP)
            await health(client, 503)
            error = error_of(await answer, 503)
            assert error["code"] == "server_overloaded"
            *chunks, told, done, _ = (await stream).text.split("\n\n")
            texts = [
                json.loads(chunk[6:])["choices"][0]["text"] for chunk in chunks if chunk[0] == "d"
            ]
            assert (TEXT * 6).startswith("".join(texts))
            assert json.loads(told.removeprefix("data: "))["error"]["code"] == "server_overloaded"
            assert done == "data: [DONE]"
            await health(client, 200)
            for count in (0, len(engine.tokenizer.encode("Hello?")) // 4 - 1):
                again = await client.post(COMPLETIONS, json={"prompt": "Hello?"})
                assert (said(again), cached(again)) == (TEXT[:16], count)

    asyncio.run(scenario())


def test_an_idle_engine_that_is_killed_is_unwell_until_it_is_back(tmp_path):
    async def scenario() -> None:
        async with served(tmp_path) as (engine, client):
            assert (await client.get("/health")).status_code == 200
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            await health(client, 503)
            refused = await client.post(COMPLETIONS, json={"prompt": "a"})
            assert error_of(refused, 503)["code"] == "server_overloaded"
            assert 1 <= int(refused.headers["retry-after"]) <= 120
            await health(client, 200)
            assert said(await client.post(COMPLETIONS, json={"prompt": "a"})) == TEXT[:16]

    asyncio.run(scenario())


def test_while_a_step_takes_seconds_the_server_is_well_and_who_leaves_is_let_go(tmp_path):
    async def scenario() -> None:
        settings = Settings(keep_alive=0.05)
        async with served(tmp_path, "pause", server=settings, step_timeout=60.0) as (
            engine,
            client,
        ):
            asked = {"prompt": "Hello?", "max_tokens": 20}
            stream = asyncio.create_task(client.post(COMPLETIONS, json={**asked, "stream": True}))
            left = asyncio.create_task(client.post(COMPLETIONS, json={**asked, "max_tokens": 300}))
            while engine.stats().steps < 3 or len(engine._streams._inboxes) < 2:
                await asyncio.sleep(0)
            looks = 0
            left.cancel()
            while engine.stats().steps == 3:
                assert (await client.get("/health")).status_code == 200
                looks += 1
                await asyncio.sleep(0.01)
            assert looks > 1
            response = await stream
            assert response.text.count(": keep-alive") > 1
            assert said(response) == TEXT[:20]
            while engine.stats().running:
                await asyncio.sleep(0.01)
            assert engine.stats().finished == {"abort": 1, "length": 1}
            assert engine.stats().restarts == 0

    asyncio.run(scenario())


def test_an_idle_engine_that_loses_what_computes_its_steps_says_why_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async def scenario() -> None:
        os.mkfifo(tmp_path / "lose")
        async with served(tmp_path, "lost") as (engine, client):
            old = engine.pid
            assert (await client.get("/health")).status_code == 200
            reason = "Rank 1 of the model was killed (SIGKILL)."
            threading.Thread(target=(tmp_path / "lose").write_text, args=(reason,)).start()
            await health(client, 503)
            await health(client, 200)
            assert f"{reason} It is started again." in caplog.text
            assert engine.pid != old
            assert said(await client.post(COMPLETIONS, json={"prompt": "a"})) == TEXT[:16]

    asyncio.run(scenario())


def test_what_is_forgotten_while_the_engine_is_gone_need_not_be_sent_again(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "DELAYS", (3600.0,))

    async def scenario() -> None:
        async with served(tmp_path) as (engine, client):
            system = {"role": "system", "content": "Be kind to all."}
            put = await client.put("/v1/cache/prefixes/house", json={"messages": [system]})
            stored = await client.post("/v1/responses", json={"input": "a", "session_id": "s"})
            assert (put.status_code, stored.status_code) == (200, 200)
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            await health(client, 503)

            async def forgotten(method: str, path: str, **body: object) -> dict[str, object]:
                answer = await client.request(method, path, json=body or None)
                assert answer.status_code == 200, answer.text
                return dict(answer.json())

            ended = await forgotten("DELETE", "/v1/cache/sessions/s")
            assert (ended["ended"], ended["released_pages"]) == (True, 0)
            for path in (f"/v1/responses/{stored.json()['id']}", "/v1/cache/prefixes/house"):
                gone = await forgotten("DELETE", path)
                assert (gone["deleted"], gone["released_pages"]) == (True, 0)
            for purged in (
                await forgotten("DELETE", "/v1/cache/tenants/self"),
                await forgotten("POST", "/v1/cache/purge", cache_salt="of today"),
                await forgotten("POST", "/reset_prefix_cache"),
            ):
                assert (purged["dropped_pages"], purged["held_pages"]) == (0, 0)
            assert (await client.get("/v1/cache/prefixes")).json()["data"] == []

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["well", "commit"])
def test_named_prefixes_are_computed_again_when_the_engine_has_lost_them(tmp_path, how: str):
    """With its process, or by a fault that costs it all that is cached."""
    house, guests = (
        {"role": "system", "content": text} for text in ("Be kind to all.", "Guests may ask twice.")
    )
    declared = {"house": FilePrefix(messages=[house]), "gone": FilePrefix(messages=[guests])}

    async def scenario() -> None:
        prefixes = Prefixes(declared)
        async with served(tmp_path, how, prefixes=prefixes) as (engine, client):

            async def computed(name: str) -> int:
                while True:
                    for each in (await client.get("/v1/cache/prefixes")).json()["data"]:
                        if each["name"] == name and each["id"] not in seen:
                            seen.add(each["id"])
                            return int(each["computed_tokens"])
                    await asyncio.sleep(0.01)

            seen: set[str] = set()
            for name in ("house", "gone"):
                await computed(name)
            assert (await client.delete("/v1/cache/prefixes/gone")).status_code == 200
            body = {"messages": [guests, {"role": "user", "content": "Who?"}]}
            assert (await client.put("/v1/cache/prefixes/own", json=body)).status_code == 200
            await computed("own")
            if how == "well":
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
                await health(client, 503)
                await health(client, 200)
            else:
                answer = await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 300})
                assert answer.status_code == 503
            again = [await computed(name) for name in ("house", "own")]
            assert min(again) > 8
            for message, tokens in zip((house, guests), again, strict=True):
                body = {"messages": [message, {"role": "user", "content": "Who?"}], "max_tokens": 1}
                asked = await client.post(CHAT, json=body)
                assert cached(asked) >= tokens - 1
            listed = (await client.get("/v1/cache/prefixes")).json()["data"]
            assert {each["name"] for each in listed} == {"house", "own"}
            assert engine.stats().restarts == (how == "well")

    asyncio.run(scenario())
