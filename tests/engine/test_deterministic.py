"""The same bits: cold, warm at any cut, alone, in any batch, in chunks of any size."""

from __future__ import annotations

import json
import random

import pytest

from radixserve.attention import cpu
from radixserve.config import EngineConfig
from radixserve.engine.llm import LLM, Completion
from radixserve.engine.model_files import prepare
from radixserve.errors import ConfigError
from radixserve.scheduling.sampling import SamplingParams

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(cpu.kernels() is None, reason="there are no native kernels here"),
]

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, logprobs=3, ignore_eos=True)
LENGTH = 700
"""Beyond the length at which contexts are cut into parts."""
LAYERS = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings for a model of the demo model's shapes, whose layers all compute alike, in few."""
    demo = prepare(EngineConfig())
    config = json.loads((demo.model / "config.json").read_text()) | {"num_hidden_layers": LAYERS}
    path = tmp_path_factory.mktemp("shallow") / "config.json"
    path.write_text(json.dumps(config))
    return {"model": str(path), "load_format": "dummy", "tokenizer": str(demo.tokenizer)}


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(100, 40_000) for _ in range(length)]


def bits(answer: Completion) -> tuple[list[int], list[float]]:
    """Its tokens, and the logprobs of all that were told of."""
    logprobs = [each.logprob for chosen in answer.logprobs for each in (chosen, *chosen.top)]
    return answer.token_ids, logprobs


def ask(llm: LLM, *prompts: list[int]) -> list[tuple[list[int], list[float]]]:
    return [bits(output.completions[0]) for output in llm.generate(list(prompts), GREEDY)]


@pytest.mark.parametrize(
    ("chunk", "cuts"), [(64, (16, 333)), (512, (1, 16, 333, 511, 512, 513, LENGTH - 1))]
)
def test_a_request_gets_the_same_bits_whatever_is_around_it(
    model: dict[str, str], chunk: int, cuts: tuple[int, ...]
):
    llm = LLM(**model, deterministic=True, num_pages=600, max_num_batched_tokens=chunk)
    ours = prompt(1)
    [cold] = ask(llm, ours)
    assert ask(llm, ours) == [cold]
    for cut in cuts:
        llm.reset_prefix_cache()
        ask(llm, [*ours[:cut], *prompt(cut, 3)])
        [warm] = llm.generate([ours], GREEDY)
        assert warm.usage.cached_tokens in range(cut - 1, LENGTH)
        assert bits(warm.completions[0]) == cold, f"warm at {cut}"
    others = [[*ours[:600], *prompt(seed, 50)] for seed in range(2, 6)]
    for crowd in ([ours, *others], [prompt(9, 90), *others, ours]):
        llm.reset_prefix_cache()
        assert ask(llm, *crowd)[crowd.index(ours)] == cold
        assert ask(llm, *crowd)[crowd.index(ours)] == cold


def test_the_size_of_chunks_does_not_matter(model: dict[str, str]):
    answers = []
    for chunk in (64, 200, 512):
        llm = LLM(**model, deterministic=True, num_pages=200, max_num_batched_tokens=chunk)
        answers += ask(llm, prompt(1))
    assert answers[0] == answers[1] == answers[2]


def test_what_has_no_fixed_order_is_refused(model: dict[str, str]):
    with pytest.raises(ConfigError, match="deterministic needs the native decoder"):
        LLM(**model, deterministic=True, num_pages=50, attention_backend="reference")
