"""One model in several processes: the tokens of one, and one error when a process is lost."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from radixserve.cache.pages import PageCopy
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, EngineDeadError
from radixserve.model import parallel, ranks
from radixserve.model.loader import ModelFiles
from radixserve.model.runner import ModelRunner
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.model import tiny

GREEDY = SamplingParams(temperature=0)
PROMPT = [(29 * i * i + 3 * i + 5) % tiny.VOCABULARY for i in range(22)]
PAGE = 4

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("model"), "qwen2")


@pytest.fixture
def make(checkpoint: Path) -> Iterator[Callable[..., ModelRunner]]:
    made: list[ModelRunner] = []

    def build(lost: Callable[[str], object] = len, **settings: Any) -> ModelRunner:
        chosen = {"dtype": "float32", "device": "cpu", "num_pages": 64, "page_size": PAGE}
        config = EngineConfig(**{**chosen, "threads": 1, **settings})
        files = ModelFiles(checkpoint, checkpoint, "tiny")
        made.append(ranks.load(files, config, lost=lost))
        return made[-1]

    yield build
    for runner in made:
        runner.close()
    assert not multiprocessing.active_children()


def step(runner: ModelRunner, history: list[int], computed: int) -> list[int]:
    """The token after ``history``, of which so many tokens are in the pages already."""
    pages = array("i", [9, 3, 40, 1, 22, 17, 8, 30, 60, 63, 12])
    new = pack(history[computed:])
    row = Row("r", new, computed, pages, GREEDY, pack(history), len(PROMPT))
    ((sampled,),) = runner.execute(StepPlan(1, [row]))
    return [*history, sampled.token]


def generate(runner: ModelRunner) -> list[int]:
    history = step(runner, PROMPT, 0)
    for _ in range(12):
        history = step(runner, history, len(history) - 1)
    # A copied page is one on every rank: the rest of the block is computed upon it.
    copied = array("i", [9, 3, 40, 1, 22, 50])
    row = Row("c", pack(PROMPT[21:]), 21, copied, GREEDY, pack(PROMPT), len(PROMPT))
    ((sampled,),) = runner.execute(StepPlan(2, [row], [PageCopy(17, 50, 1)]))
    return [*history, sampled.token]


def test_two_ranks_give_the_tokens_of_one(make: Callable[..., ModelRunner]):
    two = make(tensor_parallel_size=2)
    assert two.info.backend == "torch decoder (cpu, 2 ranks)"
    with pytest.raises(ConfigError, match="in a process of its own"):
        make(tensor_parallel_size=2)
    found, one = generate(two), make()
    assert found == generate(one)
    assert found[len(PROMPT)] == found[-1]
    assert two.info.kv_bytes_per_token == one.info.kv_bytes_per_token
    two.close()
    assert not multiprocessing.active_children()
    with pytest.raises(EngineDeadError):
        step(two, PROMPT, 0)


def test_two_ranks_keep_fp8_under_scales_that_are_measured_once(
    make: Callable[..., ModelRunner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    two = make(tensor_parallel_size=2, kv_cache_dtype="fp8")
    (_,) = tmp_path.rglob("kv_scales/*.json")
    assert two.info.kv_bytes_per_token == 3 * 2 * 2 * 16
    assert two.info.kv_format is not None
    assert "float8_e4m3fn" in two.info.kv_format
    found = generate(two)
    assert found[len(PROMPT)] == found[-1]


def test_a_rank_that_is_killed_in_a_step_ends_it_at_once(make: Callable[..., ModelRunner]):
    runner = make(tensor_parallel_size=2)
    [process] = multiprocessing.active_children()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)  # so that the step waits for it
    errors: list[Exception] = []

    def compute() -> None:
        try:
            step(runner, PROMPT, 0)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=compute)
    thread.start()
    os.kill(process.pid, signal.SIGKILL)
    thread.join(parallel.PATIENCE.total_seconds() / 10)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [EngineDeadError]
    assert "Rank 1 of the model was killed (SIGKILL)" in str(errors[0])
    assert not multiprocessing.active_children()
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        step(runner, PROMPT, 0)


def test_a_rank_that_is_killed_between_steps_is_noticed_at_once(make: Callable[..., ModelRunner]):
    reasons: SimpleQueue[str] = SimpleQueue()
    runner = make(tensor_parallel_size=2, lost=reasons.put)
    step(runner, PROMPT, 0)
    [process] = multiprocessing.active_children()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    reason = "Rank 1 of the model was killed (SIGKILL)."
    assert reasons.get(timeout=60) == reason
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        step(runner, PROMPT, 0)
    runner.close()
    assert not multiprocessing.active_children()
    assert reasons.empty()


def test_ranks_that_are_ended_are_not_lost(make: Callable[..., ModelRunner]):
    reasons: list[str] = []
    make(tensor_parallel_size=2, lost=reasons.append).close()
    assert not reasons


def test_a_rank_that_fails_says_why(make: Callable[..., ModelRunner]):
    runner = make(tensor_parallel_size=2)
    impossible = pickle.dumps(([PageCopy(1, 10_000, 1)], None))
    assert isinstance(runner, ranks.ParallelRunner)
    runner._ranks.send(impossible)
    with pytest.raises(EngineDeadError, match=r"Rank 1 of the model has failed: page 10000"):
        step(runner, PROMPT, 0)
    assert not multiprocessing.active_children()


@pytest.mark.skipif(torch.cuda.is_available(), reason="its failure is that there is no GPU")
def test_a_rank_that_fails_before_it_has_met_the_others_says_why(checkpoint: Path):
    files = ModelFiles(checkpoint, checkpoint, "tiny")
    started = ranks.Ranks(files, EngineConfig(device="cuda", tensor_parallel_size=2))
    with pytest.raises(EngineDeadError, match="Rank 1 of the model has failed: device is 'cuda'"):
        started.await_ready()
    assert not multiprocessing.active_children()


def test_ranks_that_cannot_be_are_refused_before_any_is_started(
    make: Callable[..., ModelRunner], monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(ConfigError, match=r"tensor_parallel_size 3.*choose one of 1, 2, 4"):
        make(tensor_parallel_size=3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"needs 2 GPUs; torch sees 1\. Lower it, or make more"):
        make(tensor_parallel_size=2, device="cuda")
    assert not multiprocessing.active_children()


def test_a_model_that_only_transformers_runs_is_refused(tmp_path: Path):
    tiny.write(tmp_path, "gpt2")
    config = EngineConfig(device="cpu", tensor_parallel_size=2, num_pages=64)
    with pytest.raises(ConfigError, match=r"gpt2 is none of .* Leave it at 1"):
        ranks.load(ModelFiles(tmp_path, tmp_path, "tiny"), config)
    assert not multiprocessing.active_children()
