"""A model of transformers that torch compiles: the logits and tokens of the same one that it does
not, and nothing that is compiled once it serves.

All but one test leave out the last part of compiling, the making of kernels, which takes a minute.
"""

from __future__ import annotations

import copy
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import GemmaConfig, PreTrainedConfig

from radixserve.attention.arrays import paged_batch
from radixserve.config import EngineConfig
from radixserve.engine.core import EngineCore
from radixserve.engine.messages import GenerationRequest
from radixserve.errors import ConfigError, ModelError
from radixserve.model import compiled
from radixserve.model.execution import Executable, _torch, executable
from radixserve.model.loader import ModelFiles, describe
from radixserve.model.parallel import ALONE
from radixserve.model.runner import ModelRunner
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.model import tiny
from tests.model.paged import Paged

GEMMA = GemmaConfig(
    vocab_size=tiny.VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=tiny.CONTEXT,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
)
PROMPT = [(37 * i * i + 11 * i + 5) % tiny.VOCABULARY for i in range(90)]
GRAPHS = 2
"""For several tokens, and for one."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that was compiled before is known."""
    monkeypatch.setattr(compiled, "COMPILER", "aot_eager")
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def config(**settings: object) -> EngineConfig:
    chosen = {"dtype": "float32", "device": "cpu", "page_size": 4, "num_pages": 99, "threads": 1}
    return EngineConfig(**{**chosen, "torch_compile": True, **settings})


def loaded(checkpoint: Path, **settings: object) -> Executable:
    chosen = config(**settings)
    return executable(describe(checkpoint, chosen), chosen)


def step_sizes(model: Executable) -> torch.Tensor:
    """All logits of steps of many sizes and mixes over one pool."""
    paged = Paged(model, 4)
    first, second = paged.pages(len(PROMPT)), paged.pages(len(PROMPT))
    at, logits = 0, []
    for count in (9, 1, 2, 3, 1, 17, 5, 29, 1, 8, 14):
        chunk = (PROMPT[at : at + count], at, first)
        logits.append(paged.logits(chunk))
        logits.append(paged.logits(chunk, (PROMPT[at : at + count], at, second)))
        at += count
    assert at == len(PROMPT)
    rows = [Row(str(n), pack([7]), 0, paged.pages(1), SamplingParams()) for n in range(23)]
    logits += [model_logits(paged, some) for some in (rows[:2], rows[:3], rows)]
    silent = Row("s", pack(PROMPT[:6]), 0, paged.pages(6))
    assert model_logits(paged, [silent]).shape == (0, tiny.VOCABULARY)
    logits.append(model_logits(paged, [silent, *rows[:1]]))
    return torch.cat(logits)


def model_logits(paged: Paged, rows: list[Row]) -> torch.Tensor:
    return paged.run(paged_batch(StepPlan(1, rows), paged.page_size))


@pytest.mark.parametrize(
    ("made", "backend"), [(GEMMA, "reference"), (tiny.FAMILIES["gpt2"](), "native")]
)
def test_steps_of_all_sizes_give_the_same_logits_and_compile_nothing_more(
    tmp_path: Path, made: PreTrainedConfig, backend: str
):
    tiny.save(tmp_path, made)
    plain = loaded(tmp_path, attention_backend=backend, torch_compile=False)
    expected = step_sizes(plain)
    assert not counters["stats"]
    model = loaded(tmp_path, attention_backend=backend)
    assert model.name == f"{plain.name}, compiled"
    assert counters["stats"]["unique_graphs"] == GRAPHS
    torch.testing.assert_close(step_sizes(model), expected, atol=1e-4, rtol=1e-4)
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(step_sizes(model)))
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], expected, atol=1e-4, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] == GRAPHS
    assert not counters["graph_break"]


def test_a_warm_answer_is_the_cold_one_and_that_of_the_model_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compiled, "COMPILER", "eager")
    files = ModelFiles(tiny.save(tmp_path, GEMMA), tmp_path, "tiny")
    settings = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    answers = []
    for chosen in (config(torch_compile=False), config()):
        core = EngineCore(chosen, ModelRunner(files, chosen))
        for name in ("cold", "warm"):
            request = GenerationRequest(id=name, tokens=pack(PROMPT[:41]), sampling=settings)
            core.add(request)
            tokens: list[int] = []
            while not core.idle:
                for delta in core.step():
                    tokens += [each.token for each in delta.sampled]
                    cached = delta.usage.cached_tokens
            answers.append(tokens)
            assert (cached > 0) == (name == "warm")
    assert answers == [answers[0]] * 4
    assert counters["stats"]["unique_graphs"] == GRAPHS


def test_two_models_in_one_process_keep_their_pages_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compiled, "COMPILER", "eager")
    checkpoint = tiny.save(tmp_path, GEMMA)
    expected = step_sizes(loaded(checkpoint, torch_compile=False))
    first, second = loaded(checkpoint), loaded(checkpoint)
    for model in (first, second, first):
        torch.testing.assert_close(step_sizes(model), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_kernels_that_the_compiler_makes_give_the_same_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compiled, "COMPILER", "inductor")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))
    # Whether the processor has what it says is not tried with a program of its own.
    monkeypatch.setattr("torch._inductor.config.cpp.vec_isa_ok", True)
    small = copy.deepcopy(GEMMA)
    small.num_hidden_layers = 1
    checkpoint = tiny.save(tmp_path, small)
    expected = step_sizes(loaded(checkpoint, torch_compile=False))
    model = loaded(checkpoint)
    torch.testing.assert_close(step_sizes(model), expected, atol=1e-4, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] == GRAPHS


def test_decoders_of_our_own_are_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled, "COMPILER", "eager")
    tiny.write(tmp_path)
    with pytest.raises(ConfigError, match=r"through transformers.*native decoder.*leave it out"):
        loaded(tmp_path)
    chosen = config()
    with pytest.raises(ConfigError, match=r"own decoder in torch.*leave it out"):
        _torch(describe(tmp_path, chosen), chosen, ALONE)
    assert loaded(tmp_path, attention_backend="native").name.endswith("compiled")


def test_a_missing_compiler_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tiny.save(tmp_path, GEMMA)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-c++")
    with pytest.raises(ConfigError, match=r"needs no-such-c\+\+.*apt-get install.*leave"):
        loaded(tmp_path, attention_backend="reference")


def test_what_fails_while_it_compiles_is_refused_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def failing(*_: object) -> None:
        raise RuntimeError("no such kernel\nand a page of more")

    monkeypatch.setattr(compiled, "COMPILER", failing)
    tiny.save(tmp_path, GEMMA)
    with pytest.raises(ModelError, match=r"GemmaForCausalLM cannot be compiled.*Leave") as caught:
        loaded(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_compiled_model_whose_pages_are_not_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What is compiled is compared with the model's own attention once more."""
    monkeypatch.setattr(compiled, "COMPILER", "eager")
    tiny.save(tmp_path, GEMMA)

    def elsewhere(
        self: compiled.OpaqueAttention, paged: compiled.LayerAttention
    ) -> compiled.LayerAttention:
        self.now = lambda module, query, *rest, **more: torch.zeros_like(query)
        return self

    monkeypatch.setattr(compiled.OpaqueAttention, "around", elsewhere)
    with pytest.raises(ModelError, match=r"torch_compile.*other logits.*Leave torch_compile out"):
        loaded(tmp_path)
