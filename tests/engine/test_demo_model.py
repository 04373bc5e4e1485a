"""The demo model as a whole: the right tokenizer, and transformers' own greedy answers in fp32."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from radixserve.config import EngineConfig
from radixserve.engine.llm import LLM
from radixserve.engine.model_files import prepare
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import unpack

PROMPTS = [
    "What is the capital of France?",
    "Name three uses of a tree.",
    "Write a haiku about the sea.",
    "If a train leaves at 9:45 and takes 2 hours 20 minutes, when does it arrive?",
    "대한민국의 수도는 어디인가요?",
    "나무에 대해 한 문장으로 말해 주세요.",
    "바다에 대한 짧은 시를 써 주세요.",
    "3 더하기 4는 얼마인가요?",
]
NEW = 24


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32", num_pages=600, max_model_len=1024)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world! 123", [19556, 905, 17, 216, 33, 34, 35]),
        ("  multiple   spaces", [216, 2701, 256, 5600]),
    ],
)
def test_the_tokenizer_splits_digits_and_spaces_as_the_family_does(
    llm: LLM, text: str, ids: list[int]
):
    assert unpack(llm.tokenizer.encode(text)) == ids


@pytest.mark.slow
def test_eight_greedy_answers_cold_and_warm_are_those_of_transformers(llm: LLM):
    files = prepare(EngineConfig())
    plain = AutoModelForCausalLM.from_pretrained(files.model, dtype=torch.float32)
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    prompts = [unpack(llm.tokenizer.encode_chat(chat)) for chat in chats]
    ends = llm.tokenizer.eos_token_ids
    longest = max(map(len, prompts))
    padded = [[ends[0]] * (longest - len(prompt)) + prompt for prompt in prompts]
    there = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    outputs = plain.generate(
        torch.tensor(padded),
        attention_mask=torch.tensor(there),
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=ends[0],
    )
    answers = outputs[:, longest:].tolist()
    expected = [[token for token in answer if token not in ends] for answer in answers]
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW)
    cold = llm.generate(prompts, sampling)
    warm = llm.generate(prompts, sampling)
    assert [output.completions[0].token_ids for output in cold] == expected
    assert [output.completions[0].token_ids for output in warm] == expected
    for prompt, output in zip(prompts, warm, strict=True):
        assert output.usage.cached_tokens == len(prompt) - 1
