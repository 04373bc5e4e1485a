"""An engine that computes, with a tiny model."""

from __future__ import annotations

from pathlib import Path

from radixserve.config import EngineConfig
from radixserve.engine.core import EngineCore
from radixserve.engine.messages import GenerationRequest
from radixserve.model.loader import ModelFiles
from radixserve.model.runner import ModelRunner
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.model import tiny

PROMPT = [(29 * i * i + 13 * i + 3) % tiny.VOCABULARY for i in range(100)]
SAMPLING = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def engine(checkpoint: Path, **settings: object) -> EngineCore:
    config = EngineConfig(
        **{"dtype": "float32", "device": "cpu", "threads": 1, "num_pages": 600, **settings}
    )
    return EngineCore(config, ModelRunner(ModelFiles(checkpoint, checkpoint, "tiny"), config))


def ask(core: EngineCore, name: str, prompt: list[int]) -> None:
    core.add(GenerationRequest(id=name, tokens=pack(prompt), sampling=SAMPLING))


def finish(core: EngineCore, name: str, prompt: list[int]) -> tuple[list[int], int]:
    """The tokens of an answer, and how many of its prompt were cached."""
    ask(core, name, prompt)
    return run_out(core)


def run_out(core: EngineCore) -> tuple[list[int], int]:
    """The tokens of the only request that is left, and how many of its prompt were cached."""
    tokens: list[int] = []
    while not core.idle:
        for delta in core.step():
            assert delta.error is None
            tokens += [sampled.token for sampled in delta.sampled]
            cached = delta.usage.cached_tokens
    return tokens, cached
