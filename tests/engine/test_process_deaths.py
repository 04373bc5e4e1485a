"""The engine in its own process dies in every way, is found, and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import pytest

from radixserve.cache.purge import Purge
from radixserve.engine.core import FAILURES
from radixserve.engine.process import supervisor
from radixserve.errors import DeadlineError, EngineDeadError
from radixserve.tenant import OPEN
from tests.engine.saying import TEXT
from tests.engine.simulated import collect
from tests.engine.supervised import ask, back, running


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


def test_what_is_to_be_forgotten_is_lost_with_an_engine_that_dies(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "DELAYS", (3600.0,))

    async def scenario():
        async with running(tmp_path) as engine:

            async def forgotten() -> list[object]:
                return await asyncio.gather(
                    engine.reset_prefix_cache(),
                    engine.purge(b""),
                    engine.end_session(OPEN, b"", "s"),
                )

            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGSTOP)
            asked = asyncio.create_task(forgotten())
            while len(engine._streams._asked) < 3:
                await asyncio.sleep(0)
            os.kill(engine.pid, signal.SIGKILL)
            assert await asked == [Purge(0, 0), Purge(0, 0), 0]
            assert not engine.healthy()
            assert await forgotten() == [Purge(0, 0), Purge(0, 0), 0]

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
            assert await engine.reset_prefix_cache() == Purge(0, 0)
            await back(engine, old)
            assert len(await collect(engine, ask(engine, "next"))) == 20

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
