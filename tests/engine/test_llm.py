"""The library: one object, no server, no event loop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from radixserve.attention.arrays import PagedBatch
from radixserve.cache.pages import PageCopy
from radixserve.engine.llm import LLM
from radixserve.errors import ContextLengthError, InvalidRequestError, RadixServeError
from radixserve.model.launch import Launcher
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import unpack
from tests.model import tiny
from tests.model.launched import LateDevice

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.speaking(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def llm(directory: Path) -> LLM:
    return LLM(str(directory), dtype="float32", num_pages=200, page_size=4, threads=1)


def test_texts_and_token_ids_are_answered_in_their_order(llm: LLM):
    texts = ["One", "Two trees", "Three little trees"]
    outputs = llm.generate(texts, GREEDY)
    ids = [unpack(llm.tokenizer.encode(text)) for text in texts]
    again = llm.generate(ids, GREEDY)
    for text, output, other in zip(texts, outputs, again, strict=True):
        assert output.usage.prompt_tokens == len(unpack(llm.tokenizer.encode(text)))
        assert output.completions[0].token_ids == other.completions[0].token_ids
        assert output.text == llm.tokenizer.decode(output.completions[0].token_ids)
        assert output.completions[0].finish_reason == "length"
        assert other.usage.cached_tokens == other.usage.prompt_tokens - 1
    assert outputs[0].text != outputs[1].text


def test_more_prompts_than_a_server_would_let_wait_are_all_answered(llm: LLM):
    prompts = [[20 + number % 200, 30 + number // 200] for number in range(1200)]
    one = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    outputs = llm.generate(prompts, one)
    assert [unpack(output.prompt_token_ids) for output in outputs] == prompts
    assert {len(output.completions[0].token_ids) for output in outputs} == {1}


def test_what_was_not_used_for_long_makes_room(directory: Path, monkeypatch: pytest.MonkeyPatch):
    """Newcomers pass by only what was used lately, so that somebody has to look at the clock."""
    hours = count(step=3600.0)
    monkeypatch.setattr("radixserve.engine.llm.monotonic", lambda: next(hours), raising=False)
    llm = LLM(str(directory), dtype="float32", num_pages=40, page_size=4, threads=1)
    one = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    prompts = [[20 + number] * 40 for number in range(6)]
    for prompt in prompts:
        llm.generate([prompt], one)
    [output] = llm.generate([prompts[4]], one)
    assert output.usage.cached_tokens == 39


def test_one_prompt_may_be_passed_without_a_list(llm: LLM):
    [output] = llm.generate("One", GREEDY)
    assert len(output.completions[0].token_ids) == 12


def test_a_chat_reuses_its_earlier_turns(llm: LLM):
    chat = [{"role": "user", "content": "Hello"}]
    first = llm.chat(chat, GREEDY)
    chat += [
        {"role": "assistant", "content": "Well."},
        {"role": "user", "content": "And now?"},
    ]
    second = llm.chat(chat, GREEDY)
    assert first.usage.cached_tokens == 0
    # The template opens the answer, so all of the first prompt comes again.
    assert second.usage.cached_tokens >= first.usage.prompt_tokens - 1


@pytest.mark.parametrize(
    "setting",
    [
        {"kv_cache_dtype": "int8"},
        {"kv_cache_dtype": "fp8_e4m3"},
        {"quantization": "int8"},
        {"deterministic": True},
        {"attention_backend": "native"},
        {"attention_backend": "reference"},
        {"cascade_attention": False},
        {"cache_policy": "adaptive"},
        {"keep_share": 0.0},
        {"long_prefill_token_threshold": 8},
    ],
    ids=str,
)
def test_no_setting_turns_reuse_off_unsaid(directory: Path, setting: dict[str, Any]):
    llm = LLM(str(directory), dtype="float32", num_pages=200, page_size=4, threads=1, **setting)
    for _ in range(2):
        [output] = llm.generate("Three little trees", GREEDY)
    assert output.usage.cached_tokens == output.usage.prompt_tokens - 1


def test_several_answers_to_one_prompt_are_sampled_apart_and_its_tokens_counted_once(llm: LLM):
    sampling = SamplingParams(temperature=1.0, max_tokens=8, seed=3, ignore_eos=True)
    [output] = llm.generate("Say something", sampling, n=4)
    assert len({tuple(each.token_ids) for each in output.completions}) == 4
    assert output.usage.completion_tokens == 32
    assert output.usage.prompt_tokens == len(unpack(output.prompt_token_ids))
    [again] = llm.generate("Say something", sampling, n=4)
    assert [each.token_ids for each in again.completions] == [
        each.token_ids for each in output.completions
    ]
    [alone] = llm.generate("Say something", sampling)
    assert alone.completions[0].token_ids == output.completions[0].token_ids


def test_a_stop_string_cuts_the_text_where_it_begins(llm: LLM):
    [whole] = llm.generate("One", GREEDY)
    stop = whole.text[3:5]
    assert stop
    [cut] = llm.generate("One", GREEDY, stop=stop)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.completions[0].finish_reason == "stop"
    assert cut.completions[0].stop_reason == stop
    assert llm.core.idle


def test_salts_keep_prompts_apart(llm: LLM):
    llm.generate("A secret", GREEDY, cache_salt="mine")
    [other] = llm.generate("A secret", GREEDY, cache_salt="yours")
    [mine] = llm.generate("A secret", GREEDY, cache_salt="mine")
    assert other.usage.cached_tokens == 0
    assert mine.usage.cached_tokens == mine.usage.prompt_tokens - 1


def test_what_cannot_be_answered_is_refused_and_leaves_nothing_behind(llm: LLM):
    with pytest.raises(ContextLengthError):
        llm.generate(["fits", "x" * 5000], GREEDY)
    with pytest.raises(InvalidRequestError, match="empty"):
        llm.generate([[]], GREEDY)
    assert llm.core.idle
    llm.core.cache.check()


def test_a_failing_step_is_an_error_of_the_caller(llm: LLM, monkeypatch, caplog):
    def fail(plan: object) -> None:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(llm.core.runner, "execute", fail)
    with pytest.raises(RadixServeError, match="on fire"):
        llm.generate("One", GREEDY)
    assert llm.core.idle
    assert "failed" in caplog.text


def test_forgetting_the_cache_says_what_was_dropped(llm: LLM):
    llm.generate("One and two and three", GREEDY)
    before = llm.stats().pages_free
    purge = llm.reset_prefix_cache()
    assert purge.dropped == 199 - before
    assert purge.held == 0
    assert llm.stats().pages_free == 199


def test_where_steps_are_launched_it_collects_the_last_one_before_it_returns(llm: LLM):
    def compute(copies: Sequence[PageCopy], batch: PagedBatch) -> torch.Tensor:
        if batch.unknown is not None:
            batch.unknown.fill(batch.token_ids)
        logits = runner.compute(copies, batch)
        assert logits is not None
        return logits.clone()

    texts, runner = ["One", "Two trees", "Three little trees"], llm.core.runner
    expected = llm.generate(texts, GREEDY, n=2)
    token = expected[0].completions[0].token_ids[4]
    stopping = SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=(token,))
    expected += llm.generate(texts[0], stopping)
    runner.launch = Launcher(
        compute, LateDevice(), page_size=4, vocabulary=266, eos_token_ids=runner.info.eos_token_ids
    )
    for asked, sampling, n, before in (
        (texts, GREEDY, 2, expected[:3]),
        (texts[0], stopping, 1, expected[3:]),  # a step has gone on with what this ends
    ):
        found = llm.generate(asked, sampling, n=n)
        assert llm.core.idle
        assert llm.core.cache.pool.quarantined == 0
        assert [each.completions for each in found] == [each.completions for each in before]
    assert "stop" in {each.completions[0].finish_reason for each in found}
