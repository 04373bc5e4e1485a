"""An engine with several ranks that loses one while it has nothing to do."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from radixserve.config import EngineConfig
from radixserve.engine.async_llm import AsyncLLM
from radixserve.engine.frontend import TextRequest
from radixserve.engine.process import supervisor
from radixserve.engine.process.supervisor import SupervisedLLM
from radixserve.errors import EngineDeadError
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.engine.supervised import back, exists
from tests.model import tiny
from tests.text.tiny import tiny_tokenizer_dir

PATIENCE = 240
"""Seconds; what takes longer is taken for a hang."""
KILLED = "Rank 1 of the model was killed (SIGKILL)."

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = tmp_path / "model"
    files.mkdir()
    tiny.write(files)
    tiny_tokenizer_dir(files)
    settings = {"dtype": "float32", "device": "cpu", "threads": 1, "num_pages": 40}
    return EngineConfig(model=str(files), tensor_parallel_size=2, **settings)


def ask(name: str) -> TextRequest:
    sampling = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    return TextRequest(id=name, prompt=pack([5, 6, 7]), sampling=sampling)


async def answered(engine: AsyncLLM | SupervisedLLM, name: str) -> int:
    deltas = [delta async for delta in engine.generate(ask(name))]
    return deltas[-1].usage.completion_tokens


def test_an_idle_engine_ends_with_an_error_that_names_the_rank(
    config: EngineConfig, caplog: pytest.LogCaptureFixture
):
    async def scenario() -> None:
        engine = AsyncLLM(config)
        async with asyncio.timeout(PATIENCE):
            await engine.start()
            assert await answered(engine, "first") == 4
            assert engine.healthy()
            [rank] = multiprocessing.active_children()
            assert rank.pid is not None
            os.kill(rank.pid, signal.SIGKILL)
            while engine.healthy():
                await asyncio.sleep(0.01)
            with pytest.raises(EngineDeadError):
                await answered(engine, "second")
            await engine.stop()

    asyncio.run(scenario())
    assert KILLED in caplog.text
    assert not multiprocessing.active_children()


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_an_idle_engine_in_its_own_process_is_started_again_and_leaves_nothing(
    config: EngineConfig,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(supervisor, "DELAYS", (0.0,))
    seen: set[int] = set()

    async def scenario() -> None:
        engine = SupervisedLLM(config)
        async with asyncio.timeout(PATIENCE):
            await engine.start()
            assert await answered(engine, "first") == 4
            old = engine.pid
            assert old is not None
            ranks = [each for each in children(old) if "spawn_main" in command(each)]
            assert len(ranks) == 1
            seen.update(children(old))
            os.kill(ranks[0], signal.SIGKILL)
            await back(engine, old)
            assert await answered(engine, "second") == 4
            assert engine.pid is not None
            seen.update(children(engine.pid), (old, engine.pid))
            await engine.stop()
            # That of multiprocessing which tracks resources ends a moment after its parent.
            while any(map(exists, seen)):
                await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert f"{KILLED} It is started again." in caplog.text
    assert not list(temporary.glob("radixserve-*"))


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
