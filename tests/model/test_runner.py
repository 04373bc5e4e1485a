"""Step plans in, tokens out: the same as transformers' greedy search, whatever the plan."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from radixserve.cache.pages import PageCopy
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError
from radixserve.model.loader import ModelFiles
from radixserve.model.runner import ModelRunner
from radixserve.model.transformers_model import TransformersModel
from radixserve.scheduling.plan import Fork, Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.model import tiny

GREEDY = SamplingParams(temperature=0)
PROMPT = [(29 * i * i + 3 * i + 5) % tiny.VOCABULARY for i in range(22)]
PAGE = 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def make(checkpoint: Path) -> Callable[..., ModelRunner]:
    def build(**settings: Any) -> ModelRunner:
        chosen = {"dtype": "float32", "device": "cpu", "num_pages": 64, "page_size": PAGE}
        files = ModelFiles(checkpoint, checkpoint, "tiny")
        return ModelRunner(files, EngineConfig(**{**chosen, **settings}))

    return build


@pytest.mark.parametrize(("graphs", "device"), [(0, None), (1 << 20, "graphs on cpu")])
def test_a_model_that_has_graphs_is_given_a_device_for_them(
    make: Callable[..., ModelRunner],
    monkeypatch: pytest.MonkeyPatch,
    graphs: int,
    device: str | None,
):
    given = []
    on = TransformersModel.on

    def noted(model: TransformersModel, kv: torch.Tensor, graphs: Any = None) -> Any:
        given.append(graphs)
        return on(model, kv)

    monkeypatch.setattr(TransformersModel, "on", noted)
    monkeypatch.setattr(TransformersModel, "graphs", graphs)
    monkeypatch.setattr("radixserve.model.runner.CudaGraphs", lambda where: f"graphs on {where}")
    make(attention_backend="reference")
    assert given == [device]


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[int]:
    """20 tokens of transformers' own greedy search after PROMPT."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokens = list(PROMPT)
    with torch.inference_mode():
        for _ in range(20):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


def generate(
    runner: ModelRunner, pages: array[int], count: int, *, computed: int = 0, chunk: int = 999
) -> list[int]:
    """Greedy tokens after PROMPT, whose first ``computed`` tokens are in ``pages`` already."""
    history = list(PROMPT)
    while len(history) < len(PROMPT) + count:
        new = history[computed : computed + chunk]
        ends = computed + len(new) == len(history)
        row = Row("r", pack(new), computed, pages, GREEDY if ends else None, pack(history), 22)
        (sampled,) = runner.execute(StepPlan(1, [row]))
        computed += len(new)
        assert bool(sampled) == ends
        history += [each.token for each in sampled]
    return history[len(PROMPT) :]


@pytest.mark.parametrize("chunk", [22, 7, 1])
def test_greedy_tokens_are_those_of_transformers(
    make: Callable[..., ModelRunner], expected: list[int], chunk: int
):
    pages = array("i", [9, 3, 40, 1, 22, 17, 8, 30, 60, 63, 12])
    assert generate(make(), pages, 20, chunk=chunk) == expected


@pytest.mark.parametrize("shared", [1, 3, 4, 10, 21])
def test_a_copied_part_block_replaces_its_computation(
    make: Callable[..., ModelRunner], expected: list[int], shared: int
):
    runner = make()
    runner._storage.kv.fill_(torch.nan)
    pages = array("i", range(1, 12))
    generate(runner, pages, 1)
    whole, rest = divmod(shared, PAGE)
    mine = pages[:whole] + array("i", range(20, 31))
    if rest:
        runner.execute(StepPlan(2, [], [PageCopy(pages[whole], mine[whole], rest)]))
    assert generate(runner, mine, 10, computed=shared) == expected[:10]


def test_copies_run_before_the_rows_of_their_plan(
    make: Callable[..., ModelRunner], expected: list[int]
):
    runner = make()
    pages = array("i", range(1, 12))
    generate(runner, pages, 1)
    mine = pages[:5] + array("i", [50])
    row = Row("r", pack(PROMPT[21:]), 21, mine, GREEDY, pack(PROMPT), 22)
    ((sampled,),) = runner.execute(StepPlan(2, [row], [PageCopy(pages[5], 50, 1)]))
    assert sampled.token == expected[0]


def test_answers_stand_in_the_order_of_their_rows(
    make: Callable[..., ModelRunner], expected: list[int]
):
    silent = Row("a", pack(PROMPT[:5]), 0, array("i", [1, 2]))
    forked = Row("b", pack(PROMPT), 0, array("i", range(3, 9)), GREEDY, pack(PROMPT), 22)
    forked.forks = [Fork("c", GREEDY)]
    answers = make().execute(StepPlan(1, [silent, forked, silent]))
    assert [len(each) for each in answers] == [0, 2, 0]
    assert [each.token for each in answers[1]] == [expected[0]] * 2
    assert make().execute(StepPlan(1)) == []


def test_what_the_engine_must_know_is_told(make: Callable[..., ModelRunner]):
    info = make().info
    assert (info.vocab_size, info.max_model_len, info.num_pages) == (256, 63 * PAGE, 64)
    assert info.eos_token_ids == {2}
    assert info.dtype == "float32"
    assert info.kv_bytes_per_token == 3 * 2 * 2 * 16 * 4
    assert make(num_pages=1000).info.max_model_len == tiny.CONTEXT
    assert make(max_model_len=40).info.max_model_len == 40


def test_memory_that_holds_no_page_is_refused(make: Callable[..., ModelRunner]):
    with pytest.raises(ConfigError, match="kv_memory"):
        make(num_pages=None, kv_memory=1000)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_greedy_tokens_are_those_of_transformers(
    make: Callable[..., ModelRunner], expected: list[int]
):
    runner = make(device="cuda", attention_backend="reference", num_pages=None)
    assert runner.info.num_pages > 1000  # measured, and filled
    assert generate(runner, array("i", [9, 3, 40, 1, 22, 17, 8, 30, 60, 63, 12]), 20) == expected
