"""The engine is killed at random moments under load: what is answered is answered right."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest

from radixserve.engine.process import supervisor
from radixserve.engine.process.supervisor import SupervisedLLM
from radixserve.errors import EngineDeadError, RadixServeError
from tests.engine.saying import TEXT
from tests.engine.test_process import ask, back, collect, running

KILLS = 20
CLIENTS = 6
PATIENCE = 280


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_twenty_kills_under_load_give_no_wrong_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "DELAYS", (0.0,))
    right: list[str] = []
    lost: list[str] = []

    async def client(engine: SupervisedLLM, number: int, over: asyncio.Event) -> None:
        dice = random.Random(number)
        count = 0
        while not over.is_set():
            count += 1
            length = dice.randint(1, 120)
            name = f"{number}-{count}"
            try:
                deltas = await collect(
                    engine, ask(engine, name, tokens=length, n=dice.choice((1, 2)))
                )
            except EngineDeadError as error:
                lost.append(name if error.retry_after is not None else "and for good")
                await asyncio.sleep(dice.uniform(0.0, 0.3))
                continue
            for index in {delta.index for delta in deltas}:
                said = "".join(delta.text for delta in deltas if delta.index == index)
                assert said == (TEXT * 3)[:length]
            assert deltas[-1].usage.completion_tokens == length
            right.append(name)

    async def scenario() -> None:
        over = asyncio.Event()
        dice = random.Random(0)
        async with running(tmp_path, "slow", patience=PATIENCE) as engine:
            async with asyncio.TaskGroup() as group:
                for number in range(CLIENTS):
                    group.create_task(client(engine, number, over))
                for _ in range(KILLS):
                    await asyncio.sleep(dice.uniform(0.0, 0.4))
                    pid = engine.pid
                    assert pid is not None
                    os.kill(pid, signal.SIGKILL)
                    await back(engine, pid)
                before = len(right)
                while len(right) < before + CLIENTS:
                    await asyncio.sleep(0.01)
                over.set()
            assert engine.stats().restarts == KILLS
            while engine.stats().running:
                await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert right
    assert lost
    assert "and for good" not in lost


def test_an_exception_outside_of_what_computes_restarts_the_engine(tmp_path):
    async def scenario() -> None:
        async with running(tmp_path, "commit") as engine:
            old = engine.pid
            with pytest.raises(RadixServeError, match="zip"):
                await collect(engine, ask(engine))
            await back(engine, old)
            assert len(await collect(engine, ask(engine, "next"))) == 20

    asyncio.run(scenario())


def test_a_step_that_takes_long_is_waited_for(tmp_path):
    async def scenario() -> None:
        async with running(tmp_path, "pause", step_timeout=30.0) as engine:
            old = engine.pid
            assert len(await collect(engine, ask(engine))) == 20
            assert engine.pid == old

    asyncio.run(scenario())
