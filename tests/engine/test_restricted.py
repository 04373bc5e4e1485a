"""Answers in which some tokens may not stand, through the whole engine."""

from __future__ import annotations

import pytest

from radixserve.engine.llm import LLM
from radixserve.errors import InvalidRequestError
from radixserve.scheduling.grammar import Grammar
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.model import tiny


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    made = tiny.speaking(tmp_path_factory.mktemp("tiny"), vocab_size=280)
    return LLM(str(made), dtype="float32", threads=1, num_pages=400, page_size=4)


def test_only_allowed_tokens_are_chosen_and_the_length_ends_such_an_answer(llm: LLM):
    params = SamplingParams(max_tokens=30, seed=1, allowed_token_ids=(70, 71, 279), logprobs=3)
    [output] = llm.generate("Which?", params, n=3)
    for completion in output.completions:
        assert set(completion.token_ids) <= {70, 71, 279}
        assert completion.finish_reason == "length"
        assert all(each.logprob < 0.0 for each in completion.logprobs)
    assert len({tuple(each.token_ids) for each in output.completions}) == 3
    [again] = llm.generate("Which?", params)
    assert again.completions[0].token_ids == output.completions[0].token_ids
    assert again.usage.cached_tokens == again.usage.prompt_tokens - 1


def test_a_bad_word_of_several_tokens_is_not_finished(llm: LLM):
    few: dict = {"max_tokens": 60, "seed": 1, "allowed_token_ids": (70, 71)}
    word = pack([70, 71])
    [free] = llm.generate("Which?", SamplingParams(**few))
    assert word in pack(free.completions[0].token_ids)
    [kept] = llm.generate("Which?", SamplingParams(**few, bad_words=(word,)))
    assert word not in pack(kept.completions[0].token_ids)
    assert len(kept.completions[0].token_ids) == 60
    # What the prompt ends with is no beginning of a word.
    [alone] = llm.generate([5, 70], SamplingParams(**{**few, "max_tokens": 1}, bad_words=(word,)))
    [as_free] = llm.generate([5, 70], SamplingParams(**{**few, "max_tokens": 1}))
    assert alone.completions[0].token_ids == as_free.completions[0].token_ids


def test_a_form_goes_before_bad_words(llm: LLM):
    words = tuple(pack([3 + ord(letter)]) for letter in "yesno")
    form = Grammar("choice", '["yes", "no"]')
    [output] = llm.generate(
        "?", SamplingParams(max_tokens=9, seed=1, grammar=form, bad_words=words)
    )
    assert output.text in ("yes", "no")


@pytest.mark.parametrize("token", [-1, 280])
def test_tokens_that_the_model_does_not_have_are_refused(llm: LLM, token: int):
    for params in (
        SamplingParams(allowed_token_ids=(5, token)),
        SamplingParams(bad_words=(pack([5, token]),)),
    ):
        with pytest.raises(InvalidRequestError, match="must be between 0 and 279"):
            llm.generate("?", params)
