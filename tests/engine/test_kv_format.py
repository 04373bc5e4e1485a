"""Pages of one dtype and scale are never read as those of another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from radixserve.engine.core import EngineCore
from radixserve.engine.messages import GenerationRequest
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.engine.simulated import simulated_engine

SAMPLING = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)


def cached(core: EngineCore, name: str, kv_format: str | None) -> int:
    """Tokens of one prompt that are reused where KV is of ``kv_format``."""
    core.runner.info = replace(core.runner.info, kv_format=kv_format)
    core.add(GenerationRequest(id=name, tokens=pack(range(3, 43)), sampling=SAMPLING))
    found = -1
    while not core.idle:
        for delta in core.step():
            found = delta.usage.cached_tokens
    return found


def test_a_prefix_in_another_format_of_kv_is_not_found(tmp_path: Path):
    llm, model, _ = simulated_engine(tmp_path)
    core = EngineCore(llm.config, model)
    assert cached(core, "1", "float8 under one scale") == 0
    assert cached(core, "2", "float8 under another") == 0
    assert cached(core, "3", "bfloat16") == 0
    assert cached(core, "4", None) == 0
    assert cached(core, "5", "float8 under one scale") == 39
