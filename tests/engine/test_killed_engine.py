"""The engine is killed at random moments under load: what is answered is answered right."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from radixserve.engine.process import supervisor
from radixserve.engine.process.supervisor import SupervisedLLM
from radixserve.errors import EngineDeadError, LostError
from tests.engine.saying import TEXT
from tests.engine.simulated import collect
from tests.engine.supervised import ask, back, exists, running

KILLS = 20
CLIENTS = 6
LONGEST = 120
PATIENCE = 280


class Load:
    """Clients that come again and again, with prompts that share their beginnings, and ask again
    for what was lost until they have it."""

    def __init__(self, engine: SupervisedLLM, seed: int):
        self.engine, self.seed = engine, seed
        [first] = engine.tokenizer.decode([3]).encode()
        self.right = [byte + 3 - first for byte in (TEXT * 3).encode()]
        self.over = False
        self.under_way: set[str] = set()
        """Answers that have begun."""
        self.lost: list[str] = []
        self.answered = 0
        self.reused = 0

    async def client(self, number: int) -> None:
        dice = random.Random(f"{self.seed} {number}")
        asked = 0
        while not self.over:
            asked += 1
            text = "Once upon a time there was a tree. "[: dice.randint(4, 34)] + str(number)
            length, n = dice.randint(1, LONGEST), dice.choice((1, 2))
            tries = 0
            while not await self._answered(f"{number}-{asked}-{tries}", text, length, n):
                tries += 1
                await asyncio.sleep(dice.uniform(0.0, 0.3))

    async def _answered(self, name: str, text: str, length: int, n: int) -> bool:
        tokens: dict[int, list[int]] = {index: [] for index in range(n)}
        prompt = self.engine.tokenizer.encode(text)
        try:
            async for delta in self.engine.generate(
                ask(self.engine, name, tokens=length, n=n, prompt=prompt)
            ):
                self.under_way.add(name)
                tokens[delta.index] += delta.tokens
                # Also of an answer that is lost later, each token has to be the right one.
                assert tokens[delta.index] == self.right[: len(tokens[delta.index])]
                if delta.finish is not None:
                    assert (delta.finish, len(tokens[delta.index])) == ("length", length)
                    self.reused += delta.usage.cached_tokens
        except EngineDeadError as error:
            if error.retry_after is None:  # it does not come back
                raise
            if name in self.under_way:
                self.lost.append(name)
            return False
        finally:
            self.under_way.discard(name)
        self.answered += 1
        return True


def children() -> set[int]:
    """The processes that this one has started and that run."""
    found = set()
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = each.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == os.getpid() and exists(int(each.parent.name)):
            found.add(int(each.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [0])
def test_twenty_kills_under_load_give_no_wrong_answer(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(supervisor, "DELAYS", (0.0,))
    before = children()
    pids: list[int] = []

    async def scenario() -> None:
        dice = random.Random(seed)
        async with running(tmp_path, "slow", patience=PATIENCE) as engine:
            load = Load(engine, seed)
            async with asyncio.TaskGroup() as group:
                for number in range(CLIENTS):
                    group.create_task(load.client(number))
                hits = 0
                while hits < KILLS:
                    await asyncio.sleep(dice.uniform(0.0, 0.4))
                    while not load.under_way:
                        await asyncio.sleep(0)
                    pid, struck = engine.pid, set(load.under_way)
                    assert pid is not None
                    pids.append(pid)
                    os.kill(pid, signal.SIGKILL)
                    await back(engine, pid)
                    hits += bool(struck & set(load.lost))  # they may just have had their last token
                enough = load.answered + CLIENTS
                while load.answered < enough:
                    await asyncio.sleep(0.01)
                load.over = True
            assert engine.stats().restarts == len(pids)
            assert len(load.lost) >= KILLS
            assert load.reused > 0
            while engine.stats().running:
                await asyncio.sleep(0.01)
            stats = engine.stats()
            assert stats.pages_free + stats.pages_evictable == stats.pages_total

    asyncio.run(scenario())
    assert KILLS <= len(set(pids)) == len(pids) < 2 * KILLS
    assert children() <= before


def test_an_exception_outside_of_what_computes_ends_all_answers_and_not_the_engine(tmp_path):
    async def scenario() -> None:
        async with running(tmp_path, "commit") as engine:
            old = engine.pid
            answers = [collect(engine, ask(engine, name, n=2)) for name in "ab"]
            for error in await asyncio.gather(*answers, return_exceptions=True):
                assert isinstance(error, LostError)
                assert "zip" in str(error)
            assert engine.healthy()
            assert len(await collect(engine, ask(engine, "next"))) == 20
            assert engine.pid == old

    asyncio.run(scenario())


def test_a_step_that_takes_long_is_waited_for(tmp_path):
    async def scenario() -> None:
        async with running(tmp_path, "pause", step_timeout=30.0) as engine:
            old = engine.pid
            assert len(await collect(engine, ask(engine))) == 20
            assert engine.pid == old

    asyncio.run(scenario())
