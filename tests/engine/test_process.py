"""The engine in its own process answers as the one in this process does, and leaves nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest
from msgspec.structs import replace

from radixserve.cache.terms import Keeping, Mark
from radixserve.engine.messages import Look, Looked
from radixserve.engine.process import supervisor
from radixserve.errors import ContextLengthError, EngineDeadError, InvalidRequestError, ModelError
from radixserve.tenant import OPEN
from radixserve.tokens import pack
from tests.engine.saying import TEXT
from tests.engine.simulated import collect
from tests.engine.supervised import PATIENCE, ask, exists, running, supervised


def test_answers_come_as_from_the_engine_in_this_process(tmp_path):
    async def scenario():
        async with running(tmp_path) as engine:
            assert engine.healthy()
            deltas = await collect(engine, ask(engine))
            assert "".join(delta.text for delta in deltas) == TEXT[:20]
            assert [delta.finish for delta in deltas] == [None] * 19 + ["length"]
            [again] = [await collect(engine, ask(engine, "again"))]
            length = len(engine.tokenizer.encode("Hello?")) // 4
            assert again[-1].usage.cached_tokens == length - 1
            assert engine.stats().generated_tokens == 40
            assert engine.card.max_model_len == 400

    asyncio.run(scenario())


def test_many_answers_at_once_each_get_their_own_tokens(tmp_path):
    async def scenario():
        async with running(tmp_path) as engine:
            lengths = range(1, 21)
            requests = [ask(engine, str(each), tokens=each, n=2) for each in lengths]
            answers = await asyncio.gather(*(collect(engine, each) for each in requests))
            for length, deltas in zip(lengths, answers, strict=True):
                for index in (0, 1):
                    text = "".join(delta.text for delta in deltas if delta.index == index)
                    assert text == TEXT[:length]

    asyncio.run(scenario())


def test_refusals_keep_their_kind_and_their_details(tmp_path):
    async def scenario():
        async with running(tmp_path) as engine:
            with pytest.raises(ContextLengthError) as caught:
                await collect(engine, ask(engine, prompt=pack([7] * 500)))
            assert (caught.value.prompt_tokens, caught.value.limit) == (500, 400)
            with pytest.raises(InvalidRequestError, match="Token 9999") as refused:
                await collect(engine, ask(engine, prompt=pack([7, 9999])))
            assert refused.value.param == "prompt"
            assert len(await collect(engine, ask(engine))) == 20

    asyncio.run(scenario())


def test_an_abandoned_answer_stops_costing_steps(tmp_path):
    async def scenario():
        async with running(tmp_path, "slow") as engine:
            stream = engine.generate(ask(engine, tokens=300))
            await anext(stream)
            await stream.aclose()
            while engine.stats().running:
                await asyncio.sleep(0.01)
            assert engine.stats().generated_tokens < 100
            assert engine.stats().finished == {"abort": 1}

    asyncio.run(scenario())


def test_what_is_cached_of_a_prompt_is_told_without_touching_it(tmp_path):
    async def scenario():
        async with running(tmp_path) as engine:
            request = ask(engine, "Hello there, all of you!")
            look = Look(request.prompt, request.namespace, request.tenant)
            assert await engine.look(look) == Looked(0, 0)
            await collect(engine, request)
            tokens = len(request.prompt) // 4
            for _ in range(2):
                seen = await engine.look(look)
                assert seen.reused + seen.copied == tokens - 1
            assert (await engine.look(replace(look, limit=2))).reused <= 2
            assert await engine.look(replace(look, namespace=b"another")) == Looked(0, 0)

    asyncio.run(scenario())


def test_what_is_kept_no_longer_is_not_counted_though_nothing_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "HEARTBEAT", 0.1)

    async def scenario():
        async with running(tmp_path) as engine:
            keeping = Keeping((Mark(None, 1),))
            await collect(engine, ask(engine, keeping=keeping))
            assert engine.stats().tenants[OPEN].pages_kept
            while engine.stats().tenants[OPEN].pages_kept:
                await asyncio.sleep(0.01)
            assert engine.stats().keeps.expired

    asyncio.run(scenario())


def test_a_model_that_cannot_be_loaded_is_an_error_of_the_start(tmp_path):
    async def scenario():
        engine = supervised(tmp_path)
        (tmp_path / "broken").touch()
        with pytest.raises(ModelError, match="torn"):
            await engine.start()
        await engine.stop()

    asyncio.run(scenario())


def test_stopping_fails_what_is_in_flight(tmp_path):
    async def scenario():
        async with running(tmp_path, "slow") as engine:
            stream = engine.generate(ask(engine, tokens=300))
            await anext(stream)
            await engine.stop()
            with pytest.raises(EngineDeadError, match="stopped") as caught:
                _ = [delta async for delta in stream]
            assert caught.value.retry_after is None
            with pytest.raises(EngineDeadError):
                await collect(engine, ask(engine, "late"))

    asyncio.run(scenario())


PARENT = """
import asyncio, sys
from pathlib import Path
from tests.engine.supervised import ask, supervised

async def main():
    engine = supervised(Path(sys.argv[1]), "slow")
    await engine.start()
    print(engine.pid, flush=True)
    async for _ in engine.generate(ask(engine, tokens=390)):
        pass

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_is_left_when_the_one_that_started_it_is_killed(tmp_path, number):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent:
        pid = int(parent.stdout.readline())
        assert exists(pid)
        parent.send_signal(number)
        parent.wait(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_signals_for_the_whole_group_are_left_to_the_server(tmp_path):
    async def scenario():
        async with running(tmp_path, "slow") as engine:
            stream = engine.generate(ask(engine))
            await anext(stream)
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(engine.pid, number)
            assert len([delta async for delta in stream]) == 19

    asyncio.run(scenario())
