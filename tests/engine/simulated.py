"""An engine whose model is the simulated one of the scheduler's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from radixserve.config import EngineConfig
from radixserve.engine.async_llm import AsyncLLM
from radixserve.engine.frontend import Frontend, TextDelta, TextRequest
from radixserve.scheduling.plan import UNKNOWN, Sampled, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import pack
from tests.engine.overlapped import copied
from tests.engine.saying import SayingModel
from tests.text.tiny import tiny_tokenizer_dir


class LaggingStep:
    """A step of a ``SayingModel`` that is computed when it is collected."""

    followable = True

    def __init__(self, model: SayingModel, plan: StepPlan):
        self._model, self._plan = model, copied(plan)
        for row in self._plan.rows:
            if row.tokens == UNKNOWN:
                row.tokens = pack([model._say(row.generated - 1).token])
                row.history = row.history + row.tokens

    def collect(self) -> list[tuple[Sampled, ...]]:
        return self._model.execute(self._plan)


def launch(model: SayingModel, plan: StepPlan) -> LaggingStep:
    """Made a method of the model, it launches steps instead of computing each at once."""
    return LaggingStep(model, plan)


def simulated_engine(
    directory: Path, *, num_pages: int = 200, **settings: object
) -> tuple[AsyncLLM, SayingModel, Tokenizer]:
    """An engine (to be started with the model and the tokenizer), its model and its tokenizer."""
    tiny_tokenizer_dir(directory)
    tokenizer = Tokenizer.load(directory)
    config = EngineConfig(**{"page_size": 4, "max_num_seqs": 8, **settings})
    [first] = tokenizer.decode([3]).encode()  # ids of bytes are their value plus this offset
    return AsyncLLM(config), SayingModel(config, num_pages, offset=3 - first), tokenizer


@asynccontextmanager
async def running(
    directory: Path, **settings: object
) -> AsyncIterator[tuple[AsyncLLM, SayingModel, Tokenizer]]:
    engine, model, tokenizer = simulated_engine(directory, **settings)
    await engine.start_with(model, tokenizer, "tiny")
    try:
        yield engine, model, tokenizer
    finally:
        model.free()
        await engine.stop()


def ask(tokenizer: Tokenizer, text: str = "Hello?", name: str = "r", **fields) -> TextRequest:
    sampling = {"max_tokens": 20, "temperature": 0.0, **fields.pop("sampling", {})}
    prompt = fields.pop("prompt", None) or tokenizer.encode(text)
    return TextRequest(id=name, prompt=prompt, sampling=SamplingParams(**sampling), **fields)


async def collect(engine: Frontend, request: TextRequest) -> list[TextDelta]:
    return [delta async for delta in engine.generate(request)]


async def idle(engine: AsyncLLM) -> None:
    """Wait until the engine says that nothing runs and nothing waits."""
    while engine.stats().running or engine.stats().waiting:
        await asyncio.sleep(0)
