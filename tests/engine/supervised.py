"""An engine in a process of its own, which runs the simulated model."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from radixserve.config import EngineConfig
from radixserve.engine.frontend import TextRequest
from radixserve.engine.process.supervisor import SupervisedLLM
from radixserve.scheduling.sampling import SamplingParams
from radixserve.text.tokenizer import Tokenizer
from tests.text.tiny import tiny_tokenizer_dir

PATIENCE = 60
"""Seconds; what takes longer is taken for a hang."""

COMMAND = (sys.executable, "-c", "from tests.engine.process_model import main; main()")


def supervised(
    directory: Path, how: str = "well", *, once: bool = True, **settings: object
) -> SupervisedLLM:
    """An engine whose process fails as ``how`` says; after it was started again, only unless
    ``once``."""
    [first] = Tokenizer.load(tiny_tokenizer_dir(directory)).decode([3]).encode()
    (directory / "offset").write_text(str(3 - first))
    (directory / "how").write_text(how)
    if once:
        (directory / "once").touch()
    config = EngineConfig(
        **{"tokenizer": str(directory), "page_size": 4, "max_num_seqs": 8, **settings}
    )
    return SupervisedLLM(config, command=COMMAND)


@asynccontextmanager
async def running(
    directory: Path, how: str = "well", *, patience: float = PATIENCE, **settings: object
) -> AsyncIterator[SupervisedLLM]:
    engine = supervised(directory, how, **settings)
    async with asyncio.timeout(patience):
        await engine.start()
        pids = [engine.pid]
        try:
            yield engine
        finally:
            pids.append(engine.pid)
            await engine.stop()
            assert not [pid for pid in pids if pid and exists(pid)]


def exists(pid: int) -> bool:
    """Whether ``pid`` runs; one that has ended and that nobody has asked about does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def ask(engine: SupervisedLLM, name: str = "r", *, tokens: int = 20, **fields) -> TextRequest:
    prompt = fields.pop("prompt", None) or engine.tokenizer.encode("Hello?")
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0)
    return TextRequest(id=name, prompt=prompt, sampling=sampling, **fields)


async def back(engine: SupervisedLLM, old: int | None) -> None:
    while engine.pid in (None, old):
        await asyncio.sleep(0.01)
