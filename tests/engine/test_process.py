"""The engine in its own process: it answers, dies in every way, comes back, and leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from msgspec.structs import replace

from radixserve.cache.terms import Keeping, Mark
from radixserve.engine.core import FAILURES
from radixserve.engine.messages import Look, Looked
from radixserve.engine.process import supervisor
from radixserve.errors import (
    ContextLengthError,
    DeadlineError,
    EngineDeadError,
    InvalidRequestError,
    ModelError,
)
from radixserve.tenant import OPEN
from radixserve.tokens import pack
from tests.engine.saying import TEXT
from tests.engine.simulated import collect
from tests.engine.supervised import PATIENCE, ask, back, exists, running, supervised


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


@pytest.mark.parametrize(
    ("how", "told"),
    [("die", r"killed \(SIGKILL\)"), ("end", "A rank was killed")],
)
def test_an_engine_that_dies_fails_what_is_in_flight_and_comes_back(tmp_path, how, told):
    async def scenario():
        async with running(tmp_path, how) as engine:
            old = engine.pid
            both = [collect(engine, ask(engine, name)) for name in "ab"]
            failed = await asyncio.gather(*both, return_exceptions=True)
            for error in failed:
                assert isinstance(error, EngineDeadError)
                assert error.retry_after is not None
            with pytest.raises(EngineDeadError, match=told):
                raise failed[0]
            assert not engine.healthy()
            with pytest.raises(EngineDeadError, match="started again") as refused:
                await collect(engine, ask(engine, "meanwhile"))
            assert refused.value.retry_after is not None
            await back(engine, old)
            assert engine.healthy()
            assert engine.stats().restarts == 1
            deltas = await collect(engine, ask(engine, "once more"))
            assert "".join(delta.text for delta in deltas) == TEXT[:20]

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["fail", "memory"])
def test_a_step_that_fails_or_runs_out_of_memory_is_no_death(tmp_path, how):
    async def scenario():
        async with running(tmp_path, how) as engine:
            old = engine.pid
            deltas = await collect(engine, ask(engine))
            assert deltas[-1].finish == "error"
            assert len(await collect(engine, ask(engine, "next"))) == 20
            assert engine.pid == old

    asyncio.run(scenario())


def test_an_engine_that_hangs_is_killed_and_comes_back(tmp_path):
    async def scenario():
        async with running(tmp_path, "hang", step_timeout=0.5) as engine:
            old = engine.pid
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await collect(engine, ask(engine))
            await back(engine, old)
            assert len(await collect(engine, ask(engine, "next"))) == 20

    asyncio.run(scenario())


def test_a_hang_is_found_though_nobody_waits_long_enough_to_see_it(tmp_path):
    async def scenario():
        async with running(tmp_path, "hang", step_timeout=0.5) as engine:
            old, asked = engine.pid, 0
            while engine.pid == old:
                with contextlib.suppress(DeadlineError, EngineDeadError):
                    await collect(engine, ask(engine, str(asked), timeout=0.1))
                asked += 1
            assert asked > 1
            await back(engine, old)
            assert len(await collect(engine, ask(engine, "next"))) == 20

    asyncio.run(scenario())


def test_a_hang_is_found_though_only_a_reset_waits(tmp_path):
    async def scenario():
        async with running(tmp_path, step_timeout=0.5) as engine:
            old = engine.pid
            assert len(await collect(engine, ask(engine))) == 20
            os.kill(old, signal.SIGSTOP)
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await engine.reset_prefix_cache()
            await back(engine, old)
            assert len(await collect(engine, ask(engine, "next"))) == 20

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


def test_an_idle_engine_is_not_taken_for_a_stuck_one(tmp_path):
    async def scenario():
        async with running(tmp_path, step_timeout=0.2) as engine:
            old = engine.pid
            await asyncio.sleep(0.5)
            assert engine.healthy()
            assert len(await collect(engine, ask(engine, n=2))) == 40
            assert engine.pid == old

    asyncio.run(scenario())


def test_an_engine_that_has_answered_is_not_taken_for_a_stuck_one(tmp_path):
    async def scenario():
        async with running(tmp_path, step_timeout=0.2) as engine:
            old = engine.pid
            read = await collect(engine, ask(engine, n=2))
            unread = engine.generate(ask(engine, "unread"))
            await anext(unread)  # and of the rest nothing is taken
            while engine.stats().running:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            assert (len(read), engine.pid) == (40, old)
            assert engine.healthy()
            assert len([delta async for delta in unread]) == 19
            await asyncio.sleep(0.5)
            assert engine.pid == old

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


def test_an_idle_engine_that_stands_still_is_found_and_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "HEARTBEAT", 0.1)

    async def scenario():
        async with running(tmp_path, step_timeout=0.5) as engine:
            old = engine.pid
            os.kill(old, signal.SIGSTOP)
            while engine.healthy():
                await asyncio.sleep(0.01)
            await back(engine, old)
            assert engine.healthy()
            assert len(await collect(engine, ask(engine))) == 20

    asyncio.run(scenario())


def test_an_engine_that_does_nothing_but_fail_is_started_again(tmp_path):
    async def scenario():
        async with running(tmp_path, "useless") as engine:
            old = engine.pid
            for number in range(FAILURES - 1):
                [delta] = await collect(engine, ask(engine, str(number)))
                assert delta.finish == "error"
                assert engine.pid == old
            with pytest.raises(EngineDeadError, match="fallen off the bus"):
                await collect(engine, ask(engine, "one more"))
            await back(engine, old)
            assert len(await collect(engine, ask(engine, "next"))) == 20

    asyncio.run(scenario())


def test_an_engine_whose_news_cannot_be_handed_on_is_started_again(tmp_path, monkeypatch):
    def broken(news):
        monkeypatch.undo()
        raise MemoryError

    async def scenario():
        async with running(tmp_path, "slow") as engine:
            old = engine.pid
            monkeypatch.setattr(engine._streams, "take", broken)
            with pytest.raises(EngineDeadError, match="MemoryError"):
                await collect(engine, ask(engine))
            await back(engine, old)
            assert len(await collect(engine, ask(engine, "next"))) == 20

    asyncio.run(scenario())


def test_it_is_started_again_whatever_stood_in_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "DELAYS", (0.0,))
    start = supervisor.Handle.start

    async def broken(*_):
        monkeypatch.setattr(supervisor.Handle, "start", start)
        raise MemoryError

    async def scenario():
        async with running(tmp_path, "die") as engine:
            old = engine.pid
            monkeypatch.setattr(supervisor.Handle, "start", broken)
            with pytest.raises(EngineDeadError):
                await collect(engine, ask(engine))
            await back(engine, old)
            assert engine.stats().restarts == 2
            assert len(await collect(engine, ask(engine, "next"))) == 20

    asyncio.run(scenario())


def test_it_is_started_again_until_it_can_be(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "DELAYS", (0.0, 0.05))

    async def scenario():
        async with running(tmp_path, "die") as engine:
            old = engine.pid
            (tmp_path / "broken").touch()
            with pytest.raises(EngineDeadError):
                await collect(engine, ask(engine))
            while engine._restarts < 2:
                assert not engine.healthy()
                await asyncio.sleep(0.01)
            (tmp_path / "broken").unlink()
            await back(engine, old)
            assert len(await collect(engine, ask(engine, "next"))) == 20

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
