"""Vectors of prompts are made of the hidden states that transformers has, however computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModel

from radixserve.attention.cpu import kernels
from radixserve.config import EngineConfig
from radixserve.engine.core import EngineCore
from radixserve.engine.messages import CacheMode, GenerationDelta, GenerationRequest
from radixserve.errors import InvalidRequestError
from radixserve.model.loader import ModelFiles
from radixserve.model.runner import ModelRunner
from radixserve.scheduling.sampling import Pooling, SamplingParams
from radixserve.tokens import pack
from tests.engine.saying import engine as saying
from tests.model import tiny

STEM = [(37 * i * i + 11 * i + 5) % tiny.VOCABULARY for i in range(45)]
PROMPTS = [STEM[:40], STEM[:40], [*STEM[:33], 7, 8, 9], STEM[:1], [9, *STEM[:20]], STEM]
CLOSE = 1e-4
MODELS = [("llama", "auto"), ("llama", "reference"), ("gpt2", "auto"), ("qwen3", "auto")]

Numbers = npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=MODELS, ids=["llama", "llama in torch", "gpt2", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A checkpoint, what is to run it, and transformers' states of each prompt."""
    family, backend = request.param
    if backend == "auto" and kernels() is None:
        pytest.skip("there is no C++ compiler to make the native kernels with")
    directory = tiny.write(tmp_path_factory.mktemp(family), family)
    plain = AutoModel.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        states = [
            plain(torch.tensor([prompt]), use_cache=False).last_hidden_state[0].numpy()
            for prompt in PROMPTS
        ]
    return directory, backend, states


def engine(model, **settings: object) -> EngineCore:
    directory, backend, _ = model
    config = EngineConfig(
        **{
            "dtype": "float32",
            "device": "cpu",
            "threads": 1,
            "attention_backend": backend,
            "page_size": 4,
            "num_pages": 120,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 16,
            **settings,
        }
    )
    return EngineCore(config, ModelRunner(ModelFiles(directory, directory, "tiny"), config))


def add(
    core: EngineCore,
    name: str,
    prompt: list[int],
    pooling: Pooling | None,
    *,
    length: int = 5,
    cache: CacheMode = "on",
) -> None:
    sampling = SamplingParams(
        max_tokens=length if pooling is None else 1,
        temperature=0.0,
        ignore_eos=True,
        pooling=pooling,
    )
    core.add(GenerationRequest(id=name, tokens=pack(prompt), sampling=sampling, cache=cache))


def run(core: EngineCore) -> dict[str, list[GenerationDelta]]:
    found: dict[str, list[GenerationDelta]] = {}
    while not core.idle:
        for delta in core.step():
            found.setdefault(delta.id, []).append(delta)
        core.cache.check()
    return found


def vector(deltas: list[GenerationDelta]) -> Numbers:
    [delta] = deltas
    [sampled] = delta.sampled
    assert delta.finish == "length"
    assert delta.usage.completion_tokens == 0
    assert sampled.vector is not None
    return np.frombuffer(sampled.vector, "<f4")


def pooled(states: Numbers, pooling: Pooling) -> Numbers:
    return states[-1] if pooling == "last" else states.mean(0)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_they_are_those_of_transformers_in_chunks_beside_answers_and_warm(model, pooling: Pooling):
    core = engine(model)
    for turn in range(2):
        for number, prompt in enumerate(PROMPTS):
            add(core, f"v{number}", prompt, pooling)
        add(core, "answer", STEM[3:30], None)
        found = run(core)
        for number, states in enumerate(model[2]):
            close = pooled(states, pooling)
            np.testing.assert_allclose(vector(found[f"v{number}"]), close, atol=CLOSE, rtol=CLOSE)
            cached = found[f"v{number}"][0].usage.cached_tokens
            if pooling == "mean":
                assert cached == 0
            elif turn:
                assert cached == len(PROMPTS[number]) - 1
        tokens = [each.token for delta in found["answer"] for each in delta.sampled]
        if not turn:
            alone = tokens
        assert tokens == alone
        assert len(tokens) == 5


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_they_are_right_where_requests_step_back_for_want_of_pages(model, pooling: Pooling):
    core = engine(model, num_pages=24, max_num_batched_tokens=6, max_num_seqs=4)
    for name in "abc":
        add(core, name, [ord(name), *STEM[:9]], None, length=40)
    for number, prompt in enumerate(PROMPTS):
        add(core, f"v{number}", prompt, pooling)
    found = run(core)
    assert core.stats().preemptions > 0
    for number, states in enumerate(model[2]):
        close = pooled(states, pooling)
        np.testing.assert_allclose(vector(found[f"v{number}"]), close, atol=CLOSE, rtol=CLOSE)


def test_means_of_those_that_were_aborted_are_forgotten(model):
    core = engine(model, max_num_seqs=2)
    for number in range(6):
        add(core, f"gone {number}", STEM, "mean", cache="off")
        core.step()
        core.abort(f"gone {number}")
    add(core, "left", STEM, "mean", cache="off")
    found = run(core)
    np.testing.assert_allclose(vector(found["left"]), model[2][-1].mean(0), atol=CLOSE, rtol=CLOSE)
    assert len(core.runner._pooler._sums) <= 2  # type: ignore[attr-defined]


def test_a_vector_that_is_no_number_is_an_error_of_its_request_alone(
    model, monkeypatch: pytest.MonkeyPatch
):
    core = engine(model)
    pooler = core.runner._pooler  # type: ignore[attr-defined]
    states = pooler._states

    def spoilt(batch):
        found = states(batch).clone()
        found[0] = torch.nan
        return found

    monkeypatch.setattr(pooler, "_states", spoilt)
    add(core, "a", STEM[:6], "mean")
    add(core, "b", STEM[5:9], "mean")
    found = run(core)
    [failed] = found["a"]
    assert failed.finish == "error"
    assert failed.error == "the model's output is not a number"
    np.testing.assert_allclose(vector(found["b"]).shape, model[2][0][0].shape)


def test_a_model_that_has_none_says_so():
    core = saying()
    with pytest.raises(InvalidRequestError, match="no embeddings") as caught:
        add(core, "a", STEM[:6], "last")
    assert caught.value.code == "unsupported_parameter"
    assert core.idle
