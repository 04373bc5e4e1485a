"""Penalties count the tokens of the prompt whether or not they had to be computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixserve.engine.core import EngineCore
from radixserve.engine.messages import GenerationRequest
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.engine.computing import engine, run_out
from tests.model import tiny

PROMPT = [(17 * i * i + 5 * i + 9) % tiny.VOCABULARY for i in range(70)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("llama"))


def answer(core: EngineCore, prompt: list[int], **sampling: Any) -> tuple[list[int], int]:
    """24 greedy tokens, and how many of the prompt were cached."""
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, **sampling)
    name = f"r{core.stats().steps}"
    core.add(GenerationRequest(id=name, tokens=pack(prompt), sampling=params))
    return run_out(core)


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 3.0},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 1.5},
    ],
    ids=["repetition", "all three"],
)
def test_a_penalised_answer_is_the_same_cold_and_warm(checkpoint: Path, penalties: dict[str, Any]):
    # The likely tokens stand in the prompt, so that whoever forgets a part of it says them.
    plain, _ = answer(engine(checkpoint, prefix_cache=False), PROMPT)
    prompt = [*plain[:6], *PROMPT, *plain[:2]]
    expected, _ = answer(engine(checkpoint, prefix_cache=False), prompt, **penalties)
    core = engine(checkpoint, page_size=4, num_pages=200)
    cold, nothing = answer(core, prompt, **penalties)
    warm, cached = answer(core, prompt, **penalties)
    longer, all_but_one = answer(core, [*prompt, *expected[:9]], **penalties)
    assert (nothing, cached, all_but_one) == (0, len(prompt) - 1, len(prompt) + 9 - 1)
    assert cold == expected
    assert warm == expected
    assert len(longer) == 24
    if "presence_penalty" not in penalties:
        assert longer[:15] == expected[9:], "output that became prompt counts as before"
    assert expected != answer(core, prompt)[0], "the penalties change nothing here"
    late = answer(core, prompt[-4:], **penalties)[0]
    assert late != expected
