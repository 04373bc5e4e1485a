"""Beam search gives the answers of transformers' ``generate``, over shared pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from radixserve.config import EngineConfig
from radixserve.engine.async_llm import AsyncLLM
from radixserve.engine.beams import BeamSearch
from radixserve.engine.frontend import Beams, TextDelta, TextRequest
from radixserve.errors import DeadlineError, InvalidRequestError
from radixserve.model.loader import ModelFiles
from radixserve.model.runner import ModelRunner
from radixserve.scheduling.plan import Sampled
from radixserve.scheduling.sampling import SamplingParams
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import pack
from tests.model import tiny
from tests.text.tiny import tiny_tokenizer_dir

NEW = 12
PROMPTS = [
    [(37 * i * i + 11 * i + 5) % tiny.VOCABULARY for i in range(33)],
    [(29 * i * i + 3 * i + 7) % tiny.VOCABULARY for i in range(8)],
]
Hypotheses = list[list[int]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer_dir(directory)
    return Tokenizer.load(directory)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> Callable[..., Hypotheses]:
    plain = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)

    def generate(prompt: list[int], width: int, stops: list[int], **settings: Any) -> Hypotheses:
        ids = torch.tensor([prompt])
        found = plain.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            do_sample=False,
            num_beams=width,
            num_return_sequences=width,
            eos_token_id=stops or None,
            pad_token_id=tiny.VOCABULARY - 1,
            **settings,
        )
        return [cut(tokens, stops) for tokens in found[:, len(prompt) :].tolist()]

    return generate


def cut(tokens: list[int], stops: list[int]) -> list[int]:
    """Up to the first stop token."""
    ends = [place for place, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0]] if ends else tokens


def serve(
    checkpoint: Path,
    tokenizer: Tokenizer,
    scenario: Callable[[AsyncLLM], Coroutine[Any, Any, None]],
    **settings: object,
) -> None:
    config = EngineConfig(
        **{
            "dtype": "float32",
            "device": "cpu",
            "threads": 1,
            "num_pages": 300,
            "page_size": 4,
            "max_num_seqs": 8,
            **settings,
        }
    )
    runner = ModelRunner(ModelFiles(checkpoint, checkpoint, "tiny"), config)

    async def run() -> None:
        engine = AsyncLLM(config)
        await engine.start_with(runner, tokenizer, "tiny")
        try:
            await scenario(engine)
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(run(), 120))


async def search(
    engine: AsyncLLM,
    prompt: list[int],
    width: int,
    stops: list[int] = (),  # type: ignore[assignment]
    name: str = "beams",
    timeout: float | None = None,
    logprobs: int | None = None,
    **settings: Any,
) -> list[TextDelta]:
    request = TextRequest(
        id=name,
        prompt=pack(prompt),
        sampling=SamplingParams(
            max_tokens=NEW, stop_token_ids=tuple(stops), ignore_eos=True, logprobs=logprobs
        ),
        n=width,
        beams=Beams(width=width, **settings),
        timeout=timeout,
    )
    return [delta async for delta in engine.generate(request)]


@pytest.mark.parametrize("width", [1, 2, 4, 7])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"length_penalty": 2.0},
        {"length_penalty": -1.0, "early_stopping": "never"},
        {"length_penalty": 0.0, "early_stopping": "never"},
        {"early_stopping": True},
        {"length_penalty": 1.5, "early_stopping": "never"},
    ],
    ids=str,
)
def test_answers_are_those_of_transformers(
    checkpoint: Path,
    tokenizer: Tokenizer,
    expected: Callable[..., Hypotheses],
    width: int,
    settings: dict[str, Any],
):
    stopped = []

    async def scenario(engine: AsyncLLM) -> None:
        for number, prompt in enumerate(PROMPTS):
            free = expected(prompt, width, [], **settings)
            # Stop tokens that the beams do come upon.
            for stops in ([], [free[0][4]], [free[0][7], free[-1][3], 3]):
                name = f"{number}-{len(stops)}"
                told = await search(engine, prompt, width, stops, name, **settings)
                wanted = expected(prompt, width, stops, **settings)
                assert [list(each.tokens) for each in told] == wanted
                assert [each.index for each in told] == list(range(width))
                for each, tokens in zip(told, wanted, strict=True):
                    assert each.finish == ("length" if len(tokens) == NEW else "stop")
                    stopped.append(each.finish == "stop")
        assert engine.stats().running == engine.stats().waiting == 0

    serve(checkpoint, tokenizer, scenario)
    if settings.get("length_penalty", 1.0) <= 1.0:  # else the longest are the best
        assert any(stopped)


def test_a_step_computes_one_token_of_each_beam_and_the_rest_is_shared(
    checkpoint: Path, tokenizer: Tokenizer
):
    prompt, width = PROMPTS[0], 4

    async def scenario(engine: AsyncLLM) -> None:
        told = await search(engine, prompt, width)
        stats = engine.stats()
        assert stats.computed_tokens == len(prompt) + (NEW - 1) * width
        assert stats.steps == NEW
        # A search is one request, whatever it takes.
        assert stats.prompt_tokens == len(prompt)
        assert (stats.cached_tokens, stats.finished) == (0, {"length": 1})
        usage = told[0].usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), NEW)
        whole = len(prompt) // 4
        assert usage.shared_pages is not None
        assert whole * (width - 1) <= usage.shared_pages <= (whole + NEW // 4) * (width - 1)
        assert [each.usage.shared_pages for each in told[1:]] == [None] * (width - 1)
        again = await search(engine, prompt, width, name="again")
        assert [each.tokens for each in again] == [each.tokens for each in told]
        assert again[0].usage.cached_tokens == len(prompt) - 1

    serve(checkpoint, tokenizer, scenario)


@pytest.mark.parametrize("settings", [{"num_pages": 18}, {"max_num_seqs": 2}], ids=str)
def test_where_room_is_short_the_answers_are_the_same(
    checkpoint: Path,
    tokenizer: Tokenizer,
    expected: Callable[..., Hypotheses],
    settings: dict[str, int],
):
    async def scenario(engine: AsyncLLM) -> None:
        others = [
            asyncio.create_task(search(engine, prompt, 1, name=str(number)))
            for number, prompt in enumerate(PROMPTS * 3)
        ]
        told = await search(engine, PROMPTS[0], 4)
        assert [list(each.tokens) for each in told] == expected(PROMPTS[0], 4, [])
        for number, task in enumerate(others):
            [only] = await task
            assert [list(only.tokens)] == expected(PROMPTS[number % 2], 1, [])

    serve(checkpoint, tokenizer, scenario, **settings)


def test_logprobs_are_those_of_the_tokens(checkpoint: Path, tokenizer: Tokenizer):
    async def scenario(engine: AsyncLLM) -> None:
        [best, _] = await search(engine, PROMPTS[0], 2, logprobs=1)
        assert [each.id for each in best.logprobs] == list(best.tokens)
        assert all(len(each.top) == 1 for each in best.logprobs)
        scored = TextRequest(
            id="scored",
            prompt=pack([*PROMPTS[0], *best.tokens]),
            sampling=SamplingParams(
                max_tokens=0, prompt_logprobs=1, prompt_logprobs_start=len(PROMPTS[0])
            ),
        )
        told = [each async for delta in engine.generate(scored) for each in delta.prompt_logprobs]
        assert [each.logprob for each in best.logprobs] == pytest.approx(
            [each.logprob for each in told], abs=1e-4
        )

    serve(checkpoint, tokenizer, scenario)


def test_what_is_wrong_is_said_as_of_any_request(checkpoint: Path, tokenizer: Tokenizer):
    async def scenario(engine: AsyncLLM) -> None:
        with pytest.raises(InvalidRequestError):
            await search(engine, [tiny.VOCABULARY + 5], 2)
        with pytest.raises(InvalidRequestError):
            await search(engine, PROMPTS[0], 10_000)
        with pytest.raises(DeadlineError):
            await search(engine, PROMPTS[0], 2, timeout=1e-6)
        gone = search(engine, PROMPTS[0], 2)
        task = asyncio.create_task(gone)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(await search(engine, PROMPTS[1], 2, name="later")) == 2

    serve(checkpoint, tokenizer, scenario)


def test_a_step_that_fails_is_the_error_of_the_answer(checkpoint: Path, tokenizer: Tokenizer):
    async def scenario(engine: AsyncLLM) -> None:
        await search(engine, PROMPTS[0], 2)
        fail = RuntimeError("out of paper")

        def failing(*_: object) -> None:
            raise fail

        runner = engine_runner[0]
        runner.execute, before = failing, runner.execute
        [told] = await search(engine, PROMPTS[1], 2, name="fails")
        assert told.finish == "error"
        assert "out of paper" in (told.error or "")
        runner.execute = before

    engine_runner: list[Any] = []
    made = ModelRunner.__init__

    def remember(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        engine_runner.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelRunner, "__init__", remember)
        serve(checkpoint, tokenizer, scenario)


def step(*top: tuple[int, float]) -> Sampled:
    return Sampled(top[0][0], top[0][1], top)


def test_of_a_search_that_is_cut_the_best_are_told_the_ended_ones_first():
    found = BeamSearch(Beams(width=2), 10, {9})
    found.advance([step((1, -0.1), (9, -0.2), (2, -5.0))])
    assert [beam.tokens for beam in found.running] == [pack([1]), pack([2])]
    best = found.best(2)
    assert [(beam.tokens, beam.stopped) for beam in best] == [(pack([9]), True), (pack([1]), False)]
    assert not found.done
