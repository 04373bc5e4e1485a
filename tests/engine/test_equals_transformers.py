"""The greedy tokens are those of transformers' ``generate``, whatever the cache and scheduler do.

In fp32, on tiny random models whose weights are drawn wide, so that no two logits nearly tie.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from radixserve.attention.cpu import kernels
from radixserve.engine.core import EngineCore
from radixserve.engine.messages import GenerationRequest
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.engine.computing import engine
from tests.model import tiny

NEW = 9
STEM = [(37 * i * i + 11 * i + 5) % tiny.VOCABULARY for i in range(45)]
PROMPTS = [
    STEM[:40],
    STEM[:40],
    [*STEM[:33], 7, 8, 9],
    STEM[:21],
    [9, *STEM[:20]],
    STEM,
]


@pytest.fixture(scope="module", params=list(tiny.FAMILIES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[list[int]]:
    """What transformers generates for each prompt, alone."""
    plain = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    outputs = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output = plain.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        outputs.append(output[0, len(prompt) :].tolist())
    return outputs


def answer(core: EngineCore, prompts: list[list[int]], round_: str = "") -> list[list[int]]:
    """Greedy answers, all requests at once; the ledger is checked after every step."""
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)
    answers: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        core.add(GenerationRequest(id=f"{round_}{index}", tokens=pack(prompt), sampling=sampling))
        answers[f"{round_}{index}"] = []
    while not core.idle:
        for delta in core.step():
            assert delta.error is None
            answers[delta.id].extend(each.token for each in delta.sampled)
        core.cache.check()
    return list(answers.values())


@pytest.mark.parametrize("page_size", [1, 2, 16])
@pytest.mark.parametrize("chunk", [1, 7, 512])
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["cached", "uncached"])
def test_cold_and_warm_answers_are_those_of_transformers(
    checkpoint: Path,
    expected: list[list[int]],
    page_size: int,
    chunk: int,
    prefix_cache: bool,
):
    core = engine(
        checkpoint,
        page_size=page_size,
        num_pages=1200 // page_size,
        max_num_batched_tokens=chunk,
        max_num_seqs=min(chunk, 8),
        prefix_cache=prefix_cache,
    )
    assert answer(core, PROMPTS, "cold") == expected
    before = core.stats().cached_tokens
    assert answer(core, PROMPTS, "warm") == expected
    reused = core.stats().cached_tokens - before
    # Each warm prompt is computed but for its last token.
    assert reused == (sum(len(prompt) - 1 for prompt in PROMPTS) if prefix_cache else 0)


def test_answers_are_the_same_under_eviction_and_preemption(
    checkpoint: Path, expected: list[list[int]]
):
    core = engine(checkpoint, page_size=2, num_pages=33, max_num_batched_tokens=16, max_num_seqs=4)
    for round_ in ("a", "b", "c"):
        assert answer(core, PROMPTS, round_) == expected
    stats = core.stats()
    assert stats.preemptions > 0
    assert stats.evicted_pages > 0
    assert stats.cached_tokens > 0


def first_logprobs(core: EngineCore, prompt: list[int], name: str) -> dict[int, float]:
    """The logprobs of the likeliest first tokens of an answer."""
    sampling = SamplingParams(temperature=0.0, max_tokens=1, logprobs=20)
    core.add(GenerationRequest(id=name, tokens=pack(prompt), sampling=sampling))
    while not core.idle:
        for delta in core.step():
            [sampled] = delta.sampled
    return dict(sampled.top)


def behind_each_prefix(core: EngineCore, prompt: list[int]) -> Iterator[dict[int, float]]:
    """``first_logprobs`` where a prefix of ``prompt`` is cached, for each length of it."""
    for cut in range(1, len(prompt)):
        core.reset_prefix_cache()
        answer(core, [prompt[:cut]], f"prefix{cut}-")
        before = core.stats().cached_tokens
        yield first_logprobs(core, prompt, f"warm{cut}")
        assert core.stats().cached_tokens - before >= cut - 1


def test_a_prefix_of_any_length_is_reused_and_gives_the_cold_logits(checkpoint: Path):
    core = engine(checkpoint, page_size=4, num_pages=200)
    cold = first_logprobs(core, PROMPTS[0], "cold")
    for warm in behind_each_prefix(core, PROMPTS[0]):
        assert warm == pytest.approx(cold, abs=1e-4)


@pytest.mark.skipif(kernels() is None, reason="there are no native kernels here")
@pytest.mark.parametrize("code", ["int8", "fp8_e4m3"])
def test_kv_in_8_bits_is_reused_at_any_length_as_it_was_written(tmp_path: Path, code: str):
    settings = {"page_size": 4, "num_pages": 200, "kv_cache_dtype": code, "deterministic": True}
    core = engine(tiny.write(tmp_path), **settings)
    prompt = PROMPTS[0]
    cold = first_logprobs(core, prompt, "cold")
    assert all(warm == cold for warm in behind_each_prefix(core, prompt))
    exact = engine(tmp_path, page_size=4, num_pages=200)
    assert first_logprobs(exact, prompt, "exact") != cold, "nothing was kept in 8 bits"


def test_three_thousand_shared_tokens_are_three_thousand_reused(tmp_path: Path):
    config = tiny.FAMILIES["llama"]()
    config.max_position_embeddings = 4096
    tiny.model(config).save_pretrained(tmp_path)
    core = engine(tmp_path, page_size=16, num_pages=450, max_num_batched_tokens=1024)
    shared = [(31 * i * i + 7 * i) % tiny.VOCABULARY for i in range(3000)]
    answer(core, [[*shared, 1, 2, 3]], "first")
    before = core.stats().cached_tokens
    answer(core, [[*shared, 9, 8, 7]], "second")
    assert core.stats().cached_tokens - before == 3000
