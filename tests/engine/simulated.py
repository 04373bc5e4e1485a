"""An engine whose model is the simulated one of the scheduler's tests."""

from __future__ import annotations

from pathlib import Path

from radixserve.config import EngineConfig
from radixserve.engine.async_llm import AsyncLLM
from radixserve.scheduling.plan import UNKNOWN, Sampled, StepPlan
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
